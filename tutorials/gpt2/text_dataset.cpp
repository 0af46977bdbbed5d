#include "text_dataset.h"

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace gpt2 {

TextDataset::TextDataset(torch::Tensor ids, std::int64_t seq_len)
    : ids_(std::move(ids)), seq_len_(seq_len) {
  if (seq_len < 1 || ids_.numel() <= seq_len) {
    throw std::runtime_error("a text of " + std::to_string(ids_.numel()) +
                             " tokens has no block of " + std::to_string(seq_len) +
                             " tokens and their successor; choose a sequence length from 1 to " +
                             std::to_string(ids_.numel() - 1));
  }
}

TextDataset TextDataset::from_file(const std::string& path, BpeTokenizer& tokenizer,
                                   std::int64_t seq_len) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read the text " + path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return TextDataset(torch::tensor(tokenizer.encode(text), torch::kInt64), seq_len);
}

torch::data::Example<> TextDataset::get(std::size_t index) {
  const std::int64_t first = static_cast<std::int64_t>(index) * seq_len_;
  return {ids_.narrow(0, first, seq_len_), ids_.narrow(0, first + 1, seq_len_)};
}

std::optional<std::size_t> TextDataset::size() const {
  return (ids_.numel() - 1) / seq_len_;
}

}  // namespace gpt2
