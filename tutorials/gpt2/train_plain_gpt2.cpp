// Trains the same GPT-2 on the same text as train_gpt2.cpp in one process, with LibTorch alone:
// what a program is before it hears of parallelism, and what demo.sh compares with.
//
//   ./train_plain_gpt2 --steps 5 --losses plain.losses
//
// It prints a line a step, "step 1/5  loss 10.8214", and writes the losses, one a line.
#include <torch/data.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <string>

#include "bpe_tokenizer.h"
#include "global_batch_sampler.h"
#include "gpt2.h"
#include "text_dataset.h"

namespace {

struct Options {
  std::size_t batch_size = 8;
  std::int64_t seq_len = 64;
  std::int64_t steps = 5;
  std::int64_t layers = 2, hidden = 128, heads = 4;
  double learning_rate = 1e-3;
  std::uint64_t seed = 0;
  std::string data = OSLO_TUTORIAL_DATA;
  std::string losses;
  std::string device = "cpu";
};

void train(const Options& options) {
  gpt2::BpeTokenizer tokenizer(options.data + "/gpt2-bpe");
  gpt2::GPT2Config shape;
  shape.vocab_size = tokenizer.vocab_size();
  shape.n_positions = options.seq_len;
  shape.n_embd = options.hidden;
  shape.n_layer = options.layers;
  shape.n_head = options.heads;
  shape.embd_pdrop = shape.attn_pdrop = shape.resid_pdrop = 0.0;
  torch::manual_seed(options.seed);
  gpt2::GPT2LMHeadModel model(shape);
  const torch::Device device(options.device);
  model->to(device);
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(options.learning_rate));

  auto text = gpt2::TextDataset::from_file(options.data + "/tinyshakespeare.txt", tokenizer,
                                           options.seq_len);
  gpt2::GlobalBatchSampler sampler(*text.size(), options.batch_size, /*data_ranks=*/1,
                                   /*data_rank=*/0);
  const auto examples = text.map(torch::data::transforms::Stack<>());
  std::ofstream losses;
  if (!options.losses.empty()) {
    losses.open(options.losses);
    if (!losses) throw std::runtime_error("cannot write " + options.losses);
  }

  model->train();
  std::int64_t step = 0;
  for (std::size_t epoch = 0; step < options.steps; ++epoch) {
    sampler.set_epoch(epoch);
    auto loader = torch::data::make_data_loader(examples, sampler, sampler.local_batch());
    for (auto& batch : *loader) {
      if (step++ == options.steps) break;
      optimizer.zero_grad();
      const torch::Tensor logits = model->forward(batch.data.to(device));
      const torch::Tensor loss = torch::nn::functional::cross_entropy(
          logits.view({-1, shape.vocab_size}), batch.target.to(device).view({-1}));
      loss.backward();
      torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
      optimizer.step();
      std::printf("step %ld/%ld  loss %.4f\n", static_cast<long>(step),
                  static_cast<long>(options.steps), loss.item<double>());
      std::fflush(stdout);
      if (losses.is_open()) losses << std::setprecision(9) << loss.item<double>() << std::endl;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains GPT-2 on tinyshakespeare in one process, with LibTorch alone");
  Options options;
  app.add_option("--batch-size", options.batch_size, "Sequences a step");
  app.add_option("--seq-len", options.seq_len, "Tokens a sequence");
  app.add_option("--steps", options.steps);
  app.add_option("--layers", options.layers);
  app.add_option("--hidden", options.hidden);
  app.add_option("--heads", options.heads);
  app.add_option("--lr", options.learning_rate, "AdamW's learning rate");
  app.add_option("--seed", options.seed, "Of the initial weights");
  app.add_option("--data", options.data, "Folder with tinyshakespeare.txt and the vocabulary");
  app.add_option("--losses", options.losses, "File for the losses, one a line");
  app.add_option("--device", options.device, "cpu or cuda");
  for (CLI::Option* option : app.get_options()) option->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    train(options);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
