#include "bpe_tokenizer.h"

#include <array>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "unicode_classes.h"

namespace gpt2 {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr std::size_t kCachedWords = 1 << 16;
constexpr std::size_t kCachedLength = 64;

// The files write each byte as a printable character: itself where it is one in Latin-1, otherwise
// the next free code point from 256 on.
std::array<int, 0x180> byte_of_character() {
  std::array<int, 0x180> table;
  table.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 0x100; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    table[printable ? byte : next++] = byte;
  }
  return table;
}

std::string bytes_of_token(std::string_view token, const std::string& path) {
  static const std::array<int, 0x180> kTable = byte_of_character();
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const Utf8Character character = utf8_at(token, at);
    const int byte = character.code < kTable.size() ? kTable[character.code] : -1;
    if (byte < 0) {
      throw std::runtime_error(path + ": the token \"" + std::string(token) +
                               "\" is not written in GPT-2's byte alphabet");
    }
    bytes.push_back(static_cast<char>(byte));
    at += character.length;
  }
  return bytes;
}

std::ifstream open(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("cannot read " + path +
                             ": give the folder with GPT-2's encoder.json and vocab.bpe");
  }
  return file;
}

// The end of the run of characters from `at` on for which `belongs` holds.
template <typename Belongs>
std::size_t run_end(std::string_view text, std::size_t at, Belongs belongs) {
  while (at < text.size()) {
    const Utf8Character character = utf8_at(text, at);
    if (!belongs(character.code)) break;
    at += character.length;
  }
  return at;
}

bool is_other(char32_t code) {
  return !is_space(code) && !is_letter(code) && !is_number(code);
}

}  // namespace

std::size_t word_length(std::string_view text, std::size_t at) {
  for (std::string_view suffix : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.substr(at).starts_with(suffix)) return suffix.size();
  }
  // " ?" of the pattern: a single space belongs to the word after it.
  const std::size_t body = text[at] == ' ' && at + 1 < text.size() ? at + 1 : at;
  const char32_t first = utf8_at(text, body).code;
  if (is_letter(first)) return run_end(text, body, is_letter) - at;
  if (is_number(first)) return run_end(text, body, is_number) - at;
  if (is_other(first)) return run_end(text, body, is_other) - at;

  // "\s+(?!\S)": white space up to the text's end, or all but the last character of it, which is
  // left to the word that follows; "\s+" takes that one where it stands alone.
  std::size_t end = at, last = at;
  while (end < text.size()) {
    const Utf8Character character = utf8_at(text, end);
    if (!is_space(character.code)) break;
    last = end;
    end += character.length;
  }
  return (end == text.size() || last == at ? end : last) - at;
}

BpeTokenizer::BpeTokenizer(const std::string& folder) {
  read_vocabulary(folder + "/encoder.json");
  read_merges(folder + "/vocab.bpe");
}

void BpeTokenizer::read_vocabulary(const std::string& path) {
  std::ifstream file = open(path);
  const nlohmann::json encoder = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!encoder.is_object()) throw std::runtime_error(path + ": not a JSON object");
  bytes_of_.resize(encoder.size());
  for (const auto& [token, value] : encoder.items()) {
    const std::int64_t id = value.is_number_integer() ? value.get<std::int64_t>() : -1;
    if (id < 0 || id >= vocab_size()) {
      throw std::runtime_error(path + ": the token \"" + token + "\" has no id from 0 to " +
                               std::to_string(vocab_size() - 1));
    }
    if (token == kEndOfText) {
      end_of_text_ = id;
      bytes_of_[id] = token;
      continue;
    }
    bytes_of_[id] = bytes_of_token(token, path);
    id_of_[bytes_of_[id]] = id;
  }
  if (end_of_text_ < 0) throw std::runtime_error(path + ": the token <|endoftext|> is missing");
  for (int byte = 0; byte < 0x100; ++byte) {
    const auto found = id_of_.find(std::string(1, static_cast<char>(byte)));
    if (found == id_of_.end()) {
      throw std::runtime_error(path + ": no token for the byte " + std::to_string(byte));
    }
    byte_id_[byte] = found->second;
  }
}

void BpeTokenizer::read_merges(const std::string& path) {
  std::ifstream file = open(path);
  std::int64_t rank = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with("#version")) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) {
      throw std::runtime_error(path + ": \"" + line + "\" is not a pair of tokens");
    }
    const std::string left = bytes_of_token(line.substr(0, space), path);
    const std::string right = bytes_of_token(line.substr(space + 1), path);
    const auto left_id = id_of_.find(left), right_id = id_of_.find(right);
    const auto result = id_of_.find(left + right);
    if (left_id == id_of_.end() || right_id == id_of_.end() || result == id_of_.end()) {
      throw std::runtime_error(path + ": the merge \"" + line +
                               "\" is not in encoder.json; take both files from one model");
    }
    const std::uint64_t pair = static_cast<std::uint64_t>(left_id->second) << 32 |
                               static_cast<std::uint64_t>(right_id->second);
    merges_[pair] = {rank++, result->second};
  }
}

const BpeTokenizer::Merge* BpeTokenizer::find_merge(std::int64_t left, std::int64_t right) const {
  const auto found =
      merges_.find(static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<std::int64_t> BpeTokenizer::merged(std::string_view word) const {
  std::vector<std::int64_t> ids;
  for (unsigned char byte : word) ids.push_back(byte_id_[byte]);
  while (true) {
    Merge best{std::numeric_limits<std::int64_t>::max(), -1};
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const Merge* merge = find_merge(ids[i], ids[i + 1]);
      if (merge != nullptr && merge->rank < best.rank) best = *merge;
    }
    if (best.result < 0) return ids;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Merge* merge = i + 1 < ids.size() ? find_merge(ids[i], ids[i + 1]) : nullptr;
      const bool join = merge != nullptr && merge->rank == best.rank;
      ids[kept++] = join ? best.result : ids[i];
      if (join) ++i;
    }
    ids.resize(kept);
  }
}

void BpeTokenizer::append_word(std::string_view word, std::vector<std::int64_t>& ids) {
  if (word.size() > kCachedLength) {
    const std::vector<std::int64_t> tokens = merged(word);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    return;
  }
  if (cache_.size() >= kCachedWords) cache_.clear();
  const auto [entry, fresh] = cache_.try_emplace(std::string(word));
  if (fresh) entry->second = merged(word);
  ids.insert(ids.end(), entry->second.begin(), entry->second.end());
}

std::vector<std::int64_t> BpeTokenizer::encode(std::string_view text) {
  std::vector<std::int64_t> ids;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = word_length(text, at);
    append_word(text.substr(at, length), ids);
    at += length;
  }
  return ids;
}

std::string BpeTokenizer::decode(const std::vector<std::int64_t>& ids) const {
  std::string text;
  for (std::int64_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      throw std::out_of_range("token id " + std::to_string(id) + " is outside 0 to " +
                              std::to_string(vocab_size() - 1));
    }
    text += bytes_of_[id];
  }
  return text;
}

}  // namespace gpt2
