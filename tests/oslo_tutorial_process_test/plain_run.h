#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "tutorials/gpt2/gpt2_with_labels.h"
#include "tutorials/gpt2/sentences.h"

namespace gpt2 {

/// A small GPT-2 and what it is trained on, by plain LibTorch in this process.
struct PlainRun {
  GPT2Config config;
  Sentences sentences;
  std::size_t batch_size = 2;
  std::int64_t seq_len = 8;
  double learning_rate = 1e-3;
};

inline GPT2WithLabels made(const GPT2Config& config, std::uint64_t seed) {
  torch::manual_seed(seed);
  return GPT2WithLabels(config);
}

/// The losses of `steps` steps: the mean over the tokens of the batches that `data_ranks` samplers
/// draw, each of which is tokenized alone.
inline std::vector<double> train_plain(const PlainRun& run, GPT2WithLabels& model,
                                       std::size_t data_ranks, std::size_t steps) {
  BpeTokenizer tokenizer(OSLO_TUTORIAL_DATA "/gpt2-bpe");
  torch::optim::Adam optimizer(model->parameters(), run.learning_rate);
  std::vector<double> losses;
  for (std::size_t epoch = 0; losses.size() < steps; ++epoch) {
    std::vector<torch::data::samplers::DistributedRandomSampler> samplers;
    for (std::size_t rank = 0; rank < data_ranks; ++rank) {
      samplers.emplace_back(run.sentences.size(), data_ranks, rank);
      samplers.back().set_epoch(epoch);
      samplers.back().reset();
    }
    while (losses.size() < steps) {
      optimizer.zero_grad();
      torch::Tensor sum = torch::zeros({}), tokens = torch::zeros({}, torch::kLong);
      for (auto& sampler : samplers) {
        const auto indices = sampler.next(run.batch_size);
        if (!indices) break;
        Sentences batch;
        for (const std::size_t index : *indices) batch.push_back(run.sentences.at(index));
        const CausalOutput output = model->forward(tokenize(tokenizer, batch, run.seq_len));
        sum = sum + output.loss_sum;
        tokens = tokens + output.tokens;
      }
      if (tokens.item<std::int64_t>() == 0) break;
      const torch::Tensor loss = sum / tokens;
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<double>());
    }
  }
  return losses;
}

}  // namespace gpt2
