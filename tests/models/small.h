#pragma once

#include <torch/torch.h>

namespace models {

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t inner = 12)
      : up(register_module("up", torch::nn::Linear(8, inner))),
        down(register_module("down", torch::nn::Linear(inner, 8))) {}
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::relu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Mlp);

/// A head that is the embedding.
struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : wte(register_module("wte", torch::nn::Embedding(10, 8))),
        mlp(register_module("mlp", Mlp())),
        lm_head(register_module("lm_head",
                                torch::nn::Linear(torch::nn::LinearOptions(8, 10).bias(false)))) {
    lm_head->weight = wte->weight;
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return lm_head(mlp(wte(tokens))); }
  torch::nn::Embedding wte;
  Mlp mlp;
  torch::nn::Linear lm_head;
};
TORCH_MODULE(Tied);

}  // namespace models
