#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

// What decoders have in common when they generate text token by token.
namespace generation {

/// The keys and values of all tokens so far, [batch, heads, tokens, head size], a pair for each
/// layer: the next token needs those, and nothing else of the tokens before.
struct KeyValueCache {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> layers;

  std::int64_t length() const { return layers.empty() ? 0 : layers.front().first.size(2); }

  /// Appends those of new tokens to a layer's; returns all.
  std::pair<torch::Tensor, torch::Tensor> extend(std::size_t layer, const torch::Tensor& keys,
                                                 const torch::Tensor& values) {
    if (layer == layers.size()) {
      layers.emplace_back(keys, values);
    } else {
      auto& [all_keys, all_values] = layers.at(layer);
      all_keys = torch::cat({all_keys, keys}, 2);
      all_values = torch::cat({all_values, values}, 2);
    }
    return layers[layer];
  }
};

/// Who attends to whom, bool [batch, 1, time, time], where a batch has padding: `attention_mask` is
/// [batch, time], 0 for padding. A token attends to itself and to all before it but padding.
inline torch::Tensor causal_mask(const torch::Tensor& attention_mask) {
  const std::int64_t time = attention_mask.size(1);
  const auto truth = torch::dtype(torch::kBool).device(attention_mask.device());
  const torch::Tensor before = torch::ones({time, time}, truth).tril();
  return before & attention_mask.ne(0).unsqueeze(1).unsqueeze(1);
}

/// Attention of the last `queries.size(2)` tokens to themselves and all before them, or to what
/// `mask` says, where there is one. Of fewer key heads than query heads each serves several
/// (grouped queries).
inline torch::Tensor attend(const torch::Tensor& queries, const torch::Tensor& keys,
                            const torch::Tensor& values, double dropout = 0.0, bool grouped = false,
                            std::optional<torch::Tensor> mask = {}) {
  const std::int64_t time = queries.size(2), all = keys.size(2);
  const bool causal = time == all && !mask;
  if (!mask && time > 1 && time < all) {
    mask = torch::ones({time, all}, torch::dtype(torch::kBool).device(queries.device()))
               .tril(all - time);
  }
  return at::scaled_dot_product_attention(queries, keys, values, mask, dropout,
                                          /*is_causal=*/causal, /*scale=*/{}, grouped);
}

struct GenerateOptions {
  double temperature = 1.0;  ///< 0: always the likeliest token
  std::int64_t top_k = 0;    ///< sample among the k likeliest; 0: among all
  /// A sequence that has it is at its end, and is filled up with it.
  std::optional<std::int64_t> end_of_text = {};
  std::optional<at::Generator> generator = {};
};

/// A token for each row of `logits` [batch, vocabulary].
inline std::vector<std::int64_t> choose(torch::Tensor logits, const GenerateOptions& how) {
  torch::Tensor chosen;
  if (how.temperature == 0) {
    chosen = logits.argmax(-1);
  } else {
    logits = logits / how.temperature;
    if (how.top_k > 0 && how.top_k < logits.size(-1)) {
      const torch::Tensor smallest =
          std::get<0>(logits.topk(how.top_k, -1)).narrow(-1, how.top_k - 1, 1);
      logits = logits.masked_fill(logits < smallest, -INFINITY);
    }
    chosen = torch::multinomial(logits.softmax(-1), 1, /*replacement=*/false, how.generator);
    chosen = chosen.squeeze(-1);
  }
  std::vector<std::int64_t> tokens;
  for (std::int64_t row = 0; row < chosen.size(0); ++row) {
    tokens.push_back(chosen[row].item<std::int64_t>());
  }
  return tokens;
}

/// Appends at most `count` tokens to each row of `ids` [batch, time]; fewer where all rows have
/// come to an end. `next` gives the logits [batch, vocabulary] of what follows all ids so far.
inline torch::Tensor generate(torch::Tensor ids, std::int64_t count, const GenerateOptions& how,
                              const std::function<torch::Tensor(const torch::Tensor&)>& next) {
  std::vector<bool> ended(static_cast<std::size_t>(ids.size(0)), false);
  for (std::int64_t i = 0; i < count; ++i) {
    std::vector<std::int64_t> tokens = choose(next(ids), how);
    bool all_ended = true;
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      if (how.end_of_text) {
        if (ended[row]) tokens[row] = *how.end_of_text;
        ended[row] = tokens[row] == *how.end_of_text;
      }
      all_ended = all_ended && ended[row];
    }
    ids = torch::cat({ids, torch::tensor(tokens, ids.options()).unsqueeze(1)}, 1);
    if (all_ended) break;
  }
  return ids;
}

/// Evaluation mode without gradients while it lives; the module is then as it was.
class Evaluating {
 public:
  explicit Evaluating(torch::nn::Module& module)
      : module_(module), was_training_(module.is_training()) {
    module_.eval();
  }
  ~Evaluating() { module_.train(was_training_); }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
  torch::NoGradGuard no_grad_;
};

}  // namespace generation
