#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "gpt2.h"
#include "token_batch.h"

namespace gpt2 {

/// What a forward with labels gives. Of several data ranks each has its own.
struct CausalOutput {
  torch::Tensor loss;      ///< the mean over the tokens that are predicted and no padding
  torch::Tensor loss_sum;  ///< their sum, for a mean over what other ranks have as well
  torch::Tensor tokens;    ///< how many they are, int64
  torch::Tensor logits;    ///< [sentences, tokens, vocabulary]
};

/// GPT-2 for one device, called as `transformers` calls it: `model(**batch, labels=labels)`. The
/// module and parameter names are GPT2LMHeadModel's. It is a class of its own, as a module of
/// LibTorch should have one forward.
class GPT2WithLabelsImpl : public GPT2LMHeadModelImpl {
 public:
  using GPT2LMHeadModelImpl::GPT2LMHeadModelImpl;

  /// Token t + 1 is the label of what the model says at token t.
  CausalOutput forward(const TokenBatch& batch) {
    namespace functional = torch::nn::functional;
    CausalOutput output;
    output.logits = GPT2LMHeadModelImpl::forward(batch.input_ids, nullptr, batch.attention_mask);
    const std::int64_t last = batch.input_ids.size(1) - 1;
    const torch::Tensor said = output.logits.narrow(1, 0, last).flatten(0, 1);
    const torch::Tensor labels = batch.labels.narrow(1, 1, last).flatten();
    output.loss_sum = functional::cross_entropy(
        said, labels,
        functional::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(-100));
    output.tokens = labels.ne(-100).sum();
    output.loss = output.loss_sum / output.tokens;
    return output;
  }
};
TORCH_MODULE(GPT2WithLabels);

}  // namespace gpt2
