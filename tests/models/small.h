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

/// Every container, and a layer that is registered twice.
struct ContainersImpl : torch::nn::Module {
  ContainersImpl() {
    words = register_module(
        "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 8).padding_idx(7)));
    same_words = register_module("same_words", words);
    sequential = register_module(
        "sequential", torch::nn::Sequential(torch::nn::Linear(8, 12), torch::nn::ReLU(),
                                            torch::nn::Dropout(0.5), torch::nn::Linear(12, 8)));
    list = register_module("list", torch::nn::ModuleList(torch::nn::Linear(8, 6)));
    dict = register_module("dict", torch::nn::ModuleDict());
    dict->update({{"out", torch::nn::Linear(6, 8).ptr()}});
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    cache = register_buffer("cache", torch::zeros({4}));
    cache_head = cache.slice(0, 0, 2);
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    cache.add_(1);
    if (!late.defined()) late = register_buffer("late", torch::ones({1}));
    auto x = sequential->forward(words(tokens));
    for (const auto& each : *list) x = each->as<torch::nn::Linear>()->forward(x);
    return norm(dict["out"]->as<torch::nn::Linear>()->forward(x));
  }

  torch::nn::Embedding words{nullptr}, same_words{nullptr};
  torch::nn::Sequential sequential{nullptr};
  torch::nn::ModuleList list{nullptr};
  torch::nn::ModuleDict dict{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor cache, cache_head, late;
};
TORCH_MODULE(Containers);

}  // namespace models
