#pragma once

#include <torch/torch.h>

#include <cmath>

// BERT as its author's habits go: three projections, blocks in a ModuleDict, post-norm, an additive
// padding mask, in-place residuals, a classifier on the first token.
namespace models {

struct BertOptions {
  int64_t vocabulary = 61, padding = 58, positions = 32, hidden = 48, heads = 4, inner = 80,
          layers = 2, labels = 5;
};

struct BertAttentionImpl : torch::nn::Module {
  explicit BertAttentionImpl(const BertOptions& o) : heads(o.heads) {
    query = register_module("query", torch::nn::Linear(o.hidden, o.hidden));
    key = register_module("key", torch::nn::Linear(o.hidden, o.hidden));
    value = register_module("value", torch::nn::Linear(o.hidden, o.hidden));
    dense = register_module("dense", torch::nn::Linear(o.hidden, o.hidden));
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
    const auto B = x.size(0), T = x.size(1), C = x.size(2);
    const auto shape = std::vector<int64_t>{B, T, heads, C / heads};
    const auto q = query(x).view(shape).permute({0, 2, 1, 3});
    const auto k = key(x).view(shape).permute({0, 2, 1, 3});
    const auto v = value(x).view(shape).permute({0, 2, 1, 3});
    auto scores = q.matmul(k.transpose(-1, -2));
    scores /= std::sqrt(double(C) / double(heads));
    scores += mask;
    const auto context = scores.softmax(-1).matmul(v).permute({0, 2, 1, 3}).contiguous();
    return dense(context.reshape({B, T, -1}));
  }

  int64_t heads;
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, dense{nullptr};
};
TORCH_MODULE(BertAttention);

struct BertLayerImpl : torch::nn::Module {
  explicit BertLayerImpl(const BertOptions& o) {
    parts = register_module("parts", torch::nn::ModuleDict());
    parts->update({{"attention", BertAttention(o).ptr()},
                   {"norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})).ptr()},
                   {"intermediate", torch::nn::Linear(o.hidden, o.inner).ptr()},
                   {"output", torch::nn::Linear(o.inner, o.hidden).ptr()},
                   {"norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})).ptr()}});
  }

  torch::Tensor forward(torch::Tensor x, const torch::Tensor& mask) {
    x = x + parts["attention"]->as<BertAttention>()->forward(x, mask);
    x = parts["norm1"]->as<torch::nn::LayerNorm>()->forward(x);
    auto inner = parts["intermediate"]->as<torch::nn::Linear>()->forward(x);
    inner = parts["output"]->as<torch::nn::Linear>()->forward(torch::gelu(inner));
    inner += x;
    return parts["norm2"]->as<torch::nn::LayerNorm>()->forward(inner);
  }

  torch::nn::ModuleDict parts{nullptr};
};
TORCH_MODULE(BertLayer);

struct BertImpl : torch::nn::Module {
  explicit BertImpl(const BertOptions& o) : layers(o.layers), padding(o.padding) {
    words = register_module(
        "words", torch::nn::Embedding(
                     torch::nn::EmbeddingOptions(o.vocabulary, o.hidden).padding_idx(o.padding)));
    positions = register_module("positions", torch::nn::Embedding(o.positions, o.hidden));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})));
    encoder = register_module("encoder", torch::nn::ModuleDict());
    for (int64_t i = 0; i < o.layers; ++i) {
      encoder->update({{"layer_" + std::to_string(i), BertLayer(o).ptr()}});
    }
    pooler = register_module("pooler", torch::nn::Linear(o.hidden, o.hidden));
    classifier = register_module("classifier", torch::nn::Linear(o.hidden, o.labels));
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto mask = (tokens == padding).to(torch::kFloat).mul(-1e4).unsqueeze(1).unsqueeze(2);
    auto x = words(tokens);
    x += positions(torch::arange(tokens.size(1), tokens.device()).unsqueeze(0));
    x = norm(x);
    for (int64_t i = 0; i < layers; ++i) {
      x = encoder["layer_" + std::to_string(i)]->as<BertLayer>()->forward(x, mask);
    }
    return classifier(torch::tanh(pooler(x.select(1, 0))));
  }

  int64_t layers, padding;
  torch::nn::Embedding words{nullptr}, positions{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::ModuleDict encoder{nullptr};
  torch::nn::Linear pooler{nullptr}, classifier{nullptr};
};
TORCH_MODULE(Bert);

}  // namespace models
