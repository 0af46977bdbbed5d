#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bpe_tokenizer.h"

namespace gpt2 {

/// A batch of sentences as a model takes it, each tensor int64 [sentences, tokens of the longest].
/// Called with the same words, Python's `transformers` gives the first two.
struct TokenBatch {
  torch::Tensor input_ids;       ///< shorter sentences are filled up behind with the end token
  torch::Tensor attention_mask;  ///< 1 for a token, 0 for padding
  torch::Tensor labels;          ///< the ids, and -100 for padding, which no loss counts

  TokenBatch to(const torch::Device& device) const {
    return {input_ids.to(device), attention_mask.to(device), labels.to(device)};
  }
};

/// Tokenizes, pads to the longest and cuts off behind `max_length` tokens:
/// `tokenizer(sentences, padding=True, truncation=True, max_length=max_length)`, with
/// `tokenizer.pad_token = tokenizer.eos_token`. GPT-2 has no token for padding, and its end token
/// may stand in a text too, so that the mask, not the id, tells what is padding.
/// Throws std::runtime_error for no sentences, or a `max_length` below 1.
TokenBatch tokenize(BpeTokenizer& tokenizer, const std::vector<std::string>& sentences,
                    std::int64_t max_length);

}  // namespace gpt2
