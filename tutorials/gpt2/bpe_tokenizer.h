#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace gpt2 {

/// GPT-2's byte-level byte-pair encoding (Radford et al. 2019), reading the two files that OpenAI
/// published: `encoder.json` (token to id) and `vocab.bpe` (merges in the order they were learned).
///
/// Text is cut into words by GPT-2's pattern
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// and each word's bytes are merged, earliest-learned pair first. Every byte is a token, so
/// `decode(encode(text)) == text` for any bytes, well-formed UTF-8 or not.
///
/// Encoded words are remembered: use one tokenizer per thread.
class BpeTokenizer {
 public:
  /// Reads `folder`/encoder.json and `folder`/vocab.bpe.
  /// Throws std::runtime_error, naming the file, if one is missing or does not fit the other.
  explicit BpeTokenizer(const std::string& folder);

  /// Token ids of `text`. Special tokens are not recognised: "<|endoftext|>" is encoded as the text
  /// it is; append `end_of_text()` to mark a document's end.
  std::vector<std::int64_t> encode(std::string_view text);

  /// Bytes of `ids`. A prefix of a token sequence may end within a UTF-8 character.
  /// Throws std::out_of_range on an id outside the vocabulary.
  std::string decode(const std::vector<std::int64_t>& ids) const;

  std::int64_t vocab_size() const {
    return static_cast<std::int64_t>(bytes_of_.size());
  }                                                          ///< 50257
  std::int64_t end_of_text() const { return end_of_text_; }  ///< 50256

 private:
  struct Merge {
    std::int64_t rank, result;
  };

  void read_vocabulary(const std::string& path);
  void read_merges(const std::string& path);
  void append_word(std::string_view word, std::vector<std::int64_t>& ids);
  std::vector<std::int64_t> merged(std::string_view word) const;
  const Merge* find_merge(std::int64_t left, std::int64_t right) const;

  std::vector<std::string> bytes_of_;                    // by id
  std::unordered_map<std::string, std::int64_t> id_of_;  // by bytes
  std::unordered_map<std::uint64_t, Merge> merges_;      // by left id << 32 | right id
  std::int64_t byte_id_[256];
  std::int64_t end_of_text_ = -1;
  std::unordered_map<std::string, std::vector<std::int64_t>> cache_;
};

/// Bytes that GPT-2's pattern takes as one word, from byte `at` on (at least 1).
std::size_t word_length(std::string_view text, std::size_t at);

}  // namespace gpt2
