#pragma once

#include <oslo_cpp/train_net/trained_model.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace zoo {

/// Blocks of tokens that "dataloader.train" or "dataloader.test" of a language model names:
///
///     {"dataset": "text", "file": "book.txt", "tokenizer": "gpt2", "seq_length": 128,
///      "from": 0.0, "to": 0.9}
///     {"dataset": "synthetic", "samples": 1000, "seq_length": 128}
///
/// A text's tokens are its bytes ("bytes") or those of GPT-2's tokenizer ("gpt2", or a folder with
/// encoder.json and vocab.bpe); "from" and "to" are the share of them that is taken. Without a file
/// it is the tutorials' tinyshakespeare. Synthetic tokens follow from each other, mostly, so that
/// there is something to learn.
struct TokenData {
  int64_t size = 0;
  int64_t seq_length = 0;
  /// int64 [length]: the tokens of block `number`, of `seq_length` and `more` that follow.
  std::function<at::Tensor(int64_t number)> block;
};

/// Throws oslo::ConfigError for what is not understood, and for tokens that the model does not
/// have. `more`: how many tokens behind its own a block is to have. A null section has no blocks.
TokenData token_data(const nlohmann::json& section, const std::string& path, int64_t vocab_size,
                     int64_t longest, int64_t more, int64_t seed);

/// Numbers that follow from a seed and a sample's number.
class Draws {
 public:
  Draws(int64_t seed, int64_t number);
  /// Below `end`.
  int64_t below(int64_t end);
  double share();  ///< from 0 to 1

 private:
  uint64_t next();
  uint64_t state_;
};

}  // namespace zoo
