#pragma once

#include <torch/torch.h>

namespace zoo {

/// Weights of linear layers and embeddings from a normal distribution, biases 0, as the papers of
/// BERT, Llama and the vision transformer begin: LibTorch's own embeddings are fifty times as
/// large.
inline void draw_weights(torch::nn::Module& model, double deviation = 0.02) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::Linear>()) {
      linear->weight.normal_(0.0, deviation);
      if (linear->bias.defined()) linear->bias.zero_();
    } else if (auto* embedding = module->as<torch::nn::Embedding>()) {
      embedding->weight.normal_(0.0, deviation);
    }
  }
}

}  // namespace zoo
