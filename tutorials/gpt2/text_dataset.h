#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstdint>
#include <string>

#include "bpe_tokenizer.h"

namespace gpt2 {

/// A text cut into blocks of `seq_len` tokens. Example i is the i-th block, and as target the same
/// block one token later, both int64 [seq_len]. Tokens at the end that fill no block are dropped.
/// The token ids are held in memory once; copies of the dataset share them.
class TextDataset : public torch::data::datasets::Dataset<TextDataset> {
 public:
  /// `ids` is int64 [tokens]. Throws std::runtime_error if they fill no block.
  TextDataset(torch::Tensor ids, std::int64_t seq_len);

  /// Reads and tokenizes a whole file. Throws std::runtime_error if it cannot be read.
  static TextDataset from_file(const std::string& path, BpeTokenizer& tokenizer,
                               std::int64_t seq_len);

  torch::data::Example<> get(std::size_t index) override;
  std::optional<std::size_t> size() const override;

 private:
  torch::Tensor ids_;
  std::int64_t seq_len_;
};

}  // namespace gpt2
