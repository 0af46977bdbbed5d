#pragma once

#include <torch/torch.h>

#include <tuple>
#include <vector>

// A decoder whose MLPs are mixtures of experts with top-2 routing, as Mixtral is ported: a loop
// over experts that picks its tokens with where, index_select, and adds what comes out with
// index_add_; the router's balance goes into the loss.
namespace models {

struct MoeConfig {
  int64_t vocab = 45, hidden = 40, heads = 4, expert_inner = 28, experts = 5, top_k = 2, layers = 2;
};

/// Switch Transformer's balance: the share of tokens times the mean probability of each expert.
inline torch::Tensor load_balancing_loss(const torch::Tensor& router_logits, const MoeConfig& c) {
  const auto probabilities = torch::softmax(router_logits, -1);
  const auto chosen = std::get<1>(torch::topk(probabilities, c.top_k, -1));
  const auto mask = torch::one_hot(chosen, c.experts).to(probabilities.scalar_type());
  const auto tokens_per_expert = mask.mean(0);
  const auto probability_per_expert = probabilities.mean(0);
  return (tokens_per_expert * probability_per_expert.unsqueeze(0)).sum() * c.experts;
}

struct MoeExpertImpl : torch::nn::Module {
  MoeExpertImpl(int64_t hidden, int64_t inner) {
    const auto linear = [](int64_t in, int64_t out) {
      return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
    };
    w1 = register_module("w1", linear(hidden, inner));
    w2 = register_module("w2", linear(inner, hidden));
    w3 = register_module("w3", linear(hidden, inner));
  }
  torch::Tensor forward(const torch::Tensor& x) { return w2(torch::silu(w1(x)) * w3(x)); }
  torch::nn::Linear w1{nullptr}, w2{nullptr}, w3{nullptr};
};
TORCH_MODULE(MoeExpert);

struct SparseMoeBlockImpl : torch::nn::Module {
  explicit SparseMoeBlockImpl(const MoeConfig& c) : top_k(c.top_k) {
    gate = register_module(
        "gate", torch::nn::Linear(torch::nn::LinearOptions(c.hidden, c.experts).bias(false)));
    experts = register_module("experts", torch::nn::ModuleList());
    for (int64_t e = 0; e < c.experts; ++e) experts->push_back(MoeExpert(c.hidden, c.expert_inner));
  }

  /// The mixture and the router's logits.
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& hidden_states) {
    const auto batch = hidden_states.size(0), length = hidden_states.size(1),
               width = hidden_states.size(2);
    const auto tokens = hidden_states.view({-1, width});
    const auto router_logits = gate(tokens);
    auto [weights, chosen] = torch::topk(torch::softmax(router_logits, 1), top_k, -1);
    weights /= weights.sum(-1, /*keepdim=*/true);

    auto mixture = torch::zeros({batch * length, width}, tokens.options());
    const auto expert_mask =
        torch::one_hot(chosen, static_cast<int64_t>(experts->size())).permute({2, 1, 0});
    for (size_t e = 0; e < experts->size(); ++e) {
      const auto found = torch::where(expert_mask[e]);  // {which choice, which token}
      const auto &choice = found[0], &token = found[1];
      const auto mine = tokens.index_select(0, token);
      const auto out =
          experts[e]->as<MoeExpert>()->forward(mine) * weights.index({token, choice}).unsqueeze(1);
      mixture.index_add_(0, token, out.to(mixture.scalar_type()));
    }
    return {mixture.reshape({batch, length, width}), router_logits};
  }

  int64_t top_k;
  torch::nn::Linear gate{nullptr};
  torch::nn::ModuleList experts{nullptr};
};
TORCH_MODULE(SparseMoeBlock);

struct MoeLayerImpl : torch::nn::Module {
  explicit MoeLayerImpl(const MoeConfig& c) : heads(c.heads) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.hidden})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.hidden})));
    qkv = register_module("qkv", torch::nn::Linear(c.hidden, 3 * c.hidden));
    proj = register_module("proj", torch::nn::Linear(c.hidden, c.hidden));
    block_sparse_moe = register_module("block_sparse_moe", SparseMoeBlock(c));
  }

  torch::Tensor attend(const torch::Tensor& x) {
    const auto B = x.size(0), T = x.size(1), C = x.size(2);
    const auto parts =
        qkv(x).reshape({B, T, 3, heads, C / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto y = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    return proj(y.transpose(1, 2).reshape({B, T, C}));
  }

  std::tuple<torch::Tensor, torch::Tensor> forward(torch::Tensor x) {
    x = x + attend(norm1(x));
    auto [mixed, logits] = block_sparse_moe(norm2(x));
    return {x + mixed, logits};
  }

  int64_t heads;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, proj{nullptr};
  SparseMoeBlock block_sparse_moe{nullptr};
};
TORCH_MODULE(MoeLayer);

struct MixtureOfExpertsImpl : torch::nn::Module {
  explicit MixtureOfExpertsImpl(const MoeConfig& config = {}) : c(config) {
    embed_tokens = register_module("embed_tokens", torch::nn::Embedding(c.vocab, c.hidden));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < c.layers; ++i) layers->push_back(MoeLayer(c));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.hidden})));
    lm_head = register_module("lm_head", torch::nn::Linear(c.hidden, c.vocab));
  }

  /// Logits of the vocabulary and of all routers, one below the other.
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& ids) {
    auto x = embed_tokens(ids);
    std::vector<torch::Tensor> router_logits;
    for (const auto& layer : *layers) {
      auto [y, logits] = layer->as<MoeLayer>()->forward(x);
      x = y;
      router_logits.push_back(logits);
    }
    return {lm_head(norm(x)), torch::cat(router_logits, 0)};
  }

  MoeConfig c;
  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear lm_head{nullptr};
};
TORCH_MODULE(MixtureOfExperts);

}  // namespace models
