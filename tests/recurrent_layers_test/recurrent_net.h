#pragma once

#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/initialized.h"
#include "tests/support/parity.h"
#include "tests/support/seeded.h"

// A network around one recurrent layer of LibTorch, in every way that the layer can be used.
namespace recurrent_test {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

enum class Kind { lstm, gru, tanh, relu };

struct Variant {
  std::string name;
  Kind kind = Kind::lstm;
  int64_t layers = 1;
  bool both = false;  ///< directions
  bool bias = true;
  bool batch_first = false;
  bool states = false;  ///< h0 and c0 are given
  bool packed = false;
  double dropout = 0;
  int64_t hidden = 5;
  int64_t projected = 0;  ///< size of an LSTM's states, where that is another

  int64_t directions() const { return both ? 2 : 1; }
};

constexpr int64_t kSteps = 4, kBatch = 3, kInputs = 6, kTags = 2;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Variant& variant) : variant(variant) {
    const auto with = [&](auto options) {
      options.num_layers(variant.layers).bidirectional(variant.both).bias(variant.bias);
      return options.batch_first(variant.batch_first).dropout(variant.dropout);
    };
    using namespace torch::nn;
    if (variant.kind == Kind::lstm) {
      auto options = LSTMOptions(kInputs, variant.hidden).proj_size(variant.projected);
      lstm = register_module("layer", LSTM(with(options)));
    } else if (variant.kind == Kind::gru) {
      gru = register_module("layer", GRU(with(GRUOptions(kInputs, variant.hidden))));
    } else {
      auto options = with(RNNOptions(kInputs, variant.hidden));
      if (variant.kind == Kind::relu) options.nonlinearity(torch::kReLU);
      rnn = register_module("layer", RNN(options));
    }
    const int64_t wide = variant.projected > 0 ? variant.projected : variant.hidden;
    head = register_module("head", Linear(wide * variant.directions(), kTags));
  }

  /// States of all steps, tags, the last states. `h` and `c` may be undefined: absent.
  Tensors forward(const Tensor& x, const Tensor& h = {}, const Tensor& c = {}) {
    namespace rnn_utils = torch::nn::utils::rnn;
    if (!variant.packed) {
      Tensors results = run([&](auto& layer, auto&&... state) { return layer(x, state...); }, h, c);
      results.push_back(head(results[0]));
      return results;
    }
    const auto sequences = rnn_utils::pack_padded_sequence(
        x, torch::tensor({2, 4, 3}, torch::kLong), variant.batch_first, /*enforce_sorted=*/false);
    std::optional<rnn_utils::PackedSequence> out;
    Tensors results = run(
        [&](auto& layer, auto&&... state) {
          auto [all, last] = layer->forward_with_packed_input(sequences, state...);
          out = all;
          return std::make_tuple(all.data(), last);
        },
        h, c);
    const Tensor all = std::get<0>(rnn_utils::pad_packed_sequence(*out, variant.batch_first));
    results.push_back(all);
    results.push_back(head(all));
    return results;
  }

  Variant variant;
  torch::nn::LSTM lstm{nullptr};
  torch::nn::GRU gru{nullptr};
  torch::nn::RNN rnn{nullptr};
  torch::nn::Linear head{nullptr};

 private:
  template <typename Forward>
  Tensors run(const Forward& forward, const Tensor& h, const Tensor& c) {
    if (lstm) {
      const auto [all, last] = h.defined() ? forward(lstm, std::make_tuple(h, c)) : forward(lstm);
      return {all, std::get<0>(last), std::get<1>(last)};
    }
    const auto two = [](const auto& pair) { return Tensors{std::get<0>(pair), std::get<1>(pair)}; };
    if (gru) return two(h.defined() ? forward(gru, h) : forward(gru));
    return two(h.defined() ? forward(rnn, h) : forward(rnn));
  }
};
TORCH_MODULE(Net);

inline Tensor numbers(at::IntArrayRef sizes, double phase) {
  return torch::sin(torch::arange(c10::multiply_integers(sizes), torch::kFloat64) * 1.7 + phase)
      .reshape(sizes);
}

/// A loss that sees every element of every result.
inline Tensor loss_of(const Tensors& results) {
  Tensor loss;
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor weights = numbers(results[i].sizes(), static_cast<double>(i) + 0.3);
    const Tensor term = (results[i] * weights + results[i].pow(2)).sum();
    loss = loss.defined() ? loss + term : term;
  }
  return loss;
}

inline Tensor input_of(const Variant& variant, double phase) {
  const auto sizes = variant.batch_first ? std::vector<int64_t>{kBatch, kSteps, kInputs}
                                         : std::vector<int64_t>{kSteps, kBatch, kInputs};
  return numbers(sizes, phase);
}

inline Tensor state_of(const Variant& variant, double phase) {
  return numbers({variant.layers * variant.directions(), kBatch, variant.hidden}, phase);
}

/// Cuts the layer named "layer", and the head by what that gives.
inline oslo::Config config_of(const Variant& variant, int ranks) {
  const std::string head = variant.both ? "row blocks=2" : "row";
  return oslo::Config::parse(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )" +
                             std::to_string(ranks) + R"(}, "plan": {"layer": "column", "head": ")" +
                             head + "\"}}");
}

}  // namespace recurrent_test
