#pragma once

#include <cstdint>
#include <string>

#include "gpt2.h"
#include "sentences.h"

namespace CLI {
class App;
}

namespace gpt2 {

/// What the programs that follow OSLO's tutorials are called with; the names in capitals are
/// theirs.
struct TutorialOptions {
  std::string model;  ///< a folder of Hugging Face's; empty: a small model with random weights
  std::int64_t layers = 2, hidden = 64, heads = 4;  ///< of that one

  std::string text, jsonl, squad, field = "context";  ///< where the sentences are

  std::int64_t batch_size = 4;      ///< BATCH_SIZE, of a data rank
  std::int64_t seq_len = 64;        ///< SEQ_LEN, the most tokens of a sentence
  std::int64_t save_interval = 50;  ///< SAVE_INTERVAL, steps
  std::int64_t train_step = 100;    ///< TRAIN_STEP, steps
  double learning_rate = 3e-5;
  std::uint64_t seed = 0;

  std::string data;       ///< folder with the vocabulary
  std::string out = ".";  ///< where parallel_ckpt will lie
  std::string losses;     ///< file for the losses, one a line; empty: none
  std::string device = "cpu";
};

/// Adds them to a program's `--help`.
void add_options(CLI::App& app, TutorialOptions& options);

/// The shape of the model: config.json's of the folder, else that of a small one for `seq_len`
/// tokens. Dropout is 0, so that runs over any ranks can be compared. Throws std::runtime_error for
/// a folder without one, and for a `seq_len` that the model has no positions for.
GPT2Config tutorial_config(const TutorialOptions& options, std::int64_t vocab_size);

/// The sentences of the file that was named, else of tinyshakespeare.
Sentences tutorial_sentences(const TutorialOptions& options);

}  // namespace gpt2
