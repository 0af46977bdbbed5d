#include "tutorial_options.h"

#include <CLI/CLI.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace gpt2 {

void add_options(CLI::App& app, TutorialOptions& options) {
  if (options.data.empty()) options.data = OSLO_TUTORIAL_DATA;
  app.add_option("--model", options.model,
                 "Folder of Hugging Face's with config.json and the weights of a GPT-2; without, a "
                 "small one with random weights");
  app.add_option("--layers", options.layers, "Of the small model");
  app.add_option("--hidden", options.hidden, "Of the small model");
  app.add_option("--heads", options.heads, "Of the small model");
  CLI::Option* const text = app.add_option("--text", options.text, "Sentences: a text, one a line");
  CLI::Option* const jsonl =
      app.add_option("--jsonl", options.jsonl, "Sentences: JSON objects, one a line")
          ->excludes(text);
  app.add_option("--field", options.field, "Which entry of these");
  app.add_option("--squad", options.squad, "Sentences: the contexts of a file of SQuAD")
      ->excludes(text)
      ->excludes(jsonl);
  app.add_option("--batch-size", options.batch_size, "Sentences a step, of each data rank")
      ->check(CLI::PositiveNumber);
  app.add_option("--seq-len", options.seq_len, "The most tokens of a sentence")
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--save-interval", options.save_interval, "Steps between checkpoints")
      ->check(CLI::PositiveNumber);
  app.add_option("--train-step", options.train_step, "Steps in all")->check(CLI::NonNegativeNumber);
  app.add_option("--lr", options.learning_rate, "Adam's learning rate");
  app.add_option("--seed", options.seed, "Of random weights");
  app.add_option("--data", options.data, "Folder with gpt2-bpe/encoder.json and vocab.bpe");
  app.add_option("--out", options.out, "Folder for parallel_ckpt");
  app.add_option("--losses", options.losses, "File for the losses, one a line");
  app.add_option("--device", options.device,
                 "cpu, cuda (a GPU for each rank) or cuda:0 (one that the ranks share)");
  for (CLI::Option* option : app.get_options()) option->capture_default_str();
}

GPT2Config tutorial_config(const TutorialOptions& options, std::int64_t vocab_size) {
  GPT2Config config;
  if (options.model.empty()) {
    config.vocab_size = vocab_size;
    config.n_positions = options.seq_len;
    config.n_embd = options.hidden;
    config.n_layer = options.layers;
    config.n_head = options.heads;
  } else {
    const std::string path = options.model + "/config.json";
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot read " + path);
    config = GPT2Config::from_json(nlohmann::json::parse(file, nullptr, false));
  }
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0.0;
  if (options.seq_len > config.n_positions) {
    throw std::runtime_error("--seq-len " + std::to_string(options.seq_len) +
                             " is more than the model's n_positions " +
                             std::to_string(config.n_positions));
  }
  return config;
}

Sentences tutorial_sentences(const TutorialOptions& options) {
  if (!options.jsonl.empty()) return json_lines_sentences(options.jsonl, options.field);
  if (!options.squad.empty()) return squad_contexts(options.squad);
  if (!options.text.empty()) return text_sentences(options.text);
  return text_sentences(options.data + "/tinyshakespeare.txt");
}

}  // namespace gpt2
