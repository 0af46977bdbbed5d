#pragma once

#include <oslo_cpp/engine/counted_loss.h>
#include <torch/torch.h>

#include <vector>

namespace zoo {

/// Of logits [rows, tokens, words], or [rows, classes], and the last tensor of a batch: labels of
/// their shape without the last dimension; labels of -100 do not count.
inline oslo::CountedLoss token_loss(const torch::Tensor& logits,
                                    const std::vector<torch::Tensor>& batch) {
  namespace F = torch::nn::functional;
  const torch::Tensor& labels = batch.back();
  const auto sum =
      F::cross_entropy(logits.reshape({-1, logits.size(-1)}), labels.reshape({-1}),
                       F::CrossEntropyFuncOptions().ignore_index(-100).reduction(torch::kSum));
  return {sum, labels.ne(-100).sum()};
}

}  // namespace zoo
