#pragma once

#include <torch/nn/functional.h>

#include "tests/models/gpt2.h"

namespace oslo::test {

/// A GPT-2 of sizes that divide by little.
inline models::GPT2Options small_gpt2(int64_t layers, double dropout = 0) {
  models::GPT2Options options;
  options.vocabulary = 19;
  options.hidden = 12;
  options.heads = 3;
  options.layers = layers;
  options.dropout = dropout;
  return options;
}

inline at::Tensor loss_of_tokens(const at::Tensor& logits, const at::Tensor& tokens) {
  return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}), tokens.view(-1));
}

}  // namespace oslo::test
