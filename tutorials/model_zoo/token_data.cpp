#include "token_data.h"

#include <mpu/base/error.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "bpe_tokenizer.h"
#include "model_cfg.h"

namespace zoo {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  OSLO_CHECK_AS(file, file.good(), "cannot read the text ", path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<int64_t> tokens_of(const std::string& text, const std::string& tokenizer) {
  if (tokenizer == "bytes") {
    std::vector<int64_t> bytes;
    for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
    return bytes;
  }
  return gpt2::BpeTokenizer(tokenizer == "gpt2" ? OSLO_TUTORIAL_DATA "/gpt2-bpe" : tokenizer)
      .encode(text);
}

TokenData text_data(const nlohmann::json& section, const std::string& path, int64_t vocab_size,
                    int64_t seq_length, int64_t more) {
  check_keys(section, path, {"dataset", "file", "tokenizer", "seq_length", "from", "to"});
  const std::string file =
      value_or<std::string>(section, path, "file", OSLO_TUTORIAL_DATA "/tinyshakespeare.txt");
  const std::vector<int64_t> all =
      tokens_of(text_of(file), value_or<std::string>(section, path, "tokenizer", "bytes"));
  const double from = value_or(section, path, "from", 0.0), to = value_or(section, path, "to", 1.0);
  OSLO_CHECK_AS(config, 0 <= from && from < to && to <= 1, "'", path, "': from ", from, " to ", to,
                "; give shares of the text from 0 to 1, the smaller one first");
  const auto count = static_cast<double>(all.size());
  const auto first = static_cast<int64_t>(from * count), last = static_cast<int64_t>(to * count);
  const at::Tensor tokens = at::tensor(all, at::kLong).narrow(0, first, last - first).clone();
  TokenData data;
  data.seq_length = seq_length;
  data.size = std::max<int64_t>(0, tokens.numel() - more) / seq_length;
  OSLO_CHECK_AS(config, data.size > 0, "'", path, "': ", tokens.numel(), " tokens of ", file,
                " have no block of ", seq_length + more,
                ": take more of the text, or a smaller 'seq_length'");
  const int64_t largest = tokens.max().item<int64_t>();
  OSLO_CHECK_AS(config, largest < vocab_size, "'", path, "': the text has the token ", largest,
                ", and 'model.cfg.vocab_size' is ", vocab_size, ": set it to at least ",
                largest + 1);
  data.block = [=](int64_t number) {
    return tokens.narrow(0, number * seq_length, seq_length + more).clone();
  };
  return data;
}

TokenData synthetic_data(const nlohmann::json& section, const std::string& path, int64_t vocab_size,
                         int64_t seq_length, int64_t more, int64_t seed) {
  check_keys(section, path, {"dataset", "samples", "seq_length"});
  TokenData data;
  data.seq_length = seq_length;
  data.size = value_or<int64_t>(section, path, "samples", 1000);
  OSLO_CHECK_AS(config, data.size > 0, "'", path, ".samples': give at least 1");
  data.block = [=](int64_t number) {
    Draws draws(seed, number);
    const at::Tensor tokens = at::empty({seq_length + more}, at::kLong);
    auto* const out = tokens.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < seq_length + more; ++i) {
      const bool follows = i > 0 && draws.share() < 0.9;
      out[i] = follows ? (3 * out[i - 1] + 1) % vocab_size : draws.below(vocab_size);
    }
    return tokens;
  };
  return data;
}

}  // namespace

Draws::Draws(int64_t seed, int64_t number)
    : state_(static_cast<uint64_t>(seed) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(number)) {
  next();
}

/// SplitMix64 (Steele, Lea, Flood 2014).
uint64_t Draws::next() {
  uint64_t mixed = state_ += 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return mixed ^ (mixed >> 31);
}

int64_t Draws::below(int64_t end) {
  return static_cast<int64_t>(next() % static_cast<uint64_t>(end));
}

double Draws::share() {
  return static_cast<double>(next() >> 11) / static_cast<double>(uint64_t{1} << 53);
}

TokenData token_data(const nlohmann::json& section, const std::string& path, int64_t vocab_size,
                     int64_t longest, int64_t more, int64_t seed) {
  if (section.is_null()) return {};
  const auto kind = value_or<std::string>(section, path, "dataset", "synthetic");
  const auto seq_length = value_or<int64_t>(section, path, "seq_length", longest);
  OSLO_CHECK_AS(config, seq_length >= 1 && seq_length <= longest, "'", path, ".seq_length' is ",
                seq_length, ", and the model takes from 1 to ", longest, " tokens");
  if (kind == "text") return text_data(section, path, vocab_size, seq_length, more);
  OSLO_CHECK_AS(config, kind == "synthetic", "'", path, ".dataset' is '", kind,
                "'; a language model has 'text' and 'synthetic'");
  return synthetic_data(section, path, vocab_size, seq_length, more, seed);
}

}  // namespace zoo
