#pragma once

#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <utility>

#include "tests/models/gpt2.h"
#include "tests/support/parity.h"

// Models whose stream between layers "sequence_parallel" cuts, and what it moves then.
namespace sequence_parallel {

using torch::Tensor;

/// The key beside a tensor size, and `more` behind it: "\"amp\": {...}".
inline std::string config(int tensor, const std::string& more = "", int pipeline = 1) {
  return c10::str(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )", tensor,
                  R"(, "pipeline_parallel_size": )", pipeline, R"(}, "sequence_parallel": true)",
                  more.empty() ? "" : ", ", more, "}");
}

/// A vocabulary, heads and widths that nothing divides evenly.
inline models::GPT2Options gpt2_options(double dropout = 0) {
  models::GPT2Options options;
  options.vocabulary = 35;
  options.hidden = 24;
  options.heads = 6;
  options.dropout = dropout;
  return options;
}

/// LibTorch's own encoder, whose stream is [sequence, batch, features].
struct EncoderModelImpl : torch::nn::Module {
  explicit EncoderModelImpl(double dropout = 0, bool turned = true) : turned(turned) {
    words = register_module("words", torch::nn::Embedding(31, 24));
    const auto layer =
        torch::nn::TransformerEncoderLayerOptions(24, 4).dim_feedforward(38).dropout(dropout);
    encoder = register_module("encoder",
                              torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
                                  torch::nn::TransformerEncoderLayer(layer), 2)));
    head = register_module("head", torch::nn::Linear(24, 31));
  }
  /// Of tokens [batch, sequence], or [sequence, batch] where they are not `turned`.
  Tensor forward(const Tensor& tokens) {
    const Tensor x = words(tokens);
    const Tensor y = encoder->forward(turned ? x.transpose(0, 1) : x);
    return head(turned ? y.transpose(0, 1) : y);
  }

  bool turned;
  torch::nn::Embedding words{nullptr};
  torch::nn::TransformerEncoder encoder{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(EncoderModel);

inline Tensor token_loss(const Tensor& logits, const Tensor& target) {
  return torch::nn::functional::cross_entropy(logits.reshape({-1, logits.size(-1)}),
                                              target.reshape({-1}));
}

/// What moved over the tensor ranks, by collective and operator: calls, and elements that this rank
/// received.
using Moved = std::map<std::string, std::pair<int64_t, int64_t>>;

inline Moved moved_by(const oslo::ParallelModel& parallel) {
  Moved moved;
  for (const oslo::PlanTraffic& line : parallel.plan().traffic) {
    if (line.group != "tensor") continue;
    auto& [calls, elements] = moved[line.entry.operation + " " + line.entry.rule];
    calls += line.entry.traffic.calls;
    elements += line.entry.traffic.elements;
  }
  return moved;
}

/// All of one collective.
inline std::pair<int64_t, int64_t> all_of(const Moved& moved, const std::string& operation) {
  std::pair<int64_t, int64_t> sum;
  for (const auto& [what, traffic] : moved) {
    if (what.rfind(operation + " ", 0) != 0) continue;
    sum.first += traffic.first;
    sum.second += traffic.second;
  }
  return sum;
}

}  // namespace sequence_parallel
