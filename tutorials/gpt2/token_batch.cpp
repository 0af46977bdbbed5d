#include "token_batch.h"

#include <torch/torch.h>

#include <algorithm>
#include <stdexcept>

namespace gpt2 {

TokenBatch tokenize(BpeTokenizer& tokenizer, const std::vector<std::string>& sentences,
                    std::int64_t max_length) {
  if (sentences.empty() || max_length < 1) {
    throw std::runtime_error("tokenize: " + std::to_string(sentences.size()) +
                             " sentences of at most " + std::to_string(max_length) +
                             " tokens; give at least one of each");
  }
  std::vector<std::vector<std::int64_t>> rows;
  std::size_t longest = 1;
  for (const std::string& sentence : sentences) {
    rows.push_back(tokenizer.encode(sentence));
    if (rows.back().size() > static_cast<std::size_t>(max_length)) {
      rows.back().resize(static_cast<std::size_t>(max_length));
    }
    longest = std::max(longest, rows.back().size());
  }
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(rows.size()),
                                        static_cast<std::int64_t>(longest)};
  TokenBatch batch{torch::full(shape, tokenizer.end_of_text(), torch::kInt64),
                   torch::zeros(shape, torch::kInt64), torch::full(shape, -100, torch::kInt64)};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].empty()) continue;
    const auto row = static_cast<std::int64_t>(i),
               length = static_cast<std::int64_t>(rows[i].size());
    const torch::Tensor ids = torch::tensor(rows[i], torch::kInt64);
    batch.input_ids[row].narrow(0, 0, length).copy_(ids);
    batch.attention_mask[row].narrow(0, 0, length).fill_(1);
    batch.labels[row].narrow(0, 0, length).copy_(ids);
  }
  return batch;
}

}  // namespace gpt2
