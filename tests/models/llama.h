#pragma once

#include <torch/torch.h>

#include <cmath>

// Llama as people port it: RMSNorm by hand, grouped queries, rotary positions by slicing, SwiGLU,
// no biases, a head of its own.
namespace models {

struct LlamaOptions {
  int64_t vocabulary = 70, hidden = 48, heads = 6, kv_heads = 3, inner = 88, layers = 2;
  bool repeat_kv = false;  ///< repeat the key heads by hand instead of enable_gqa
};

inline torch::nn::Linear no_bias(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

struct RMSNormImpl : torch::nn::Module {
  explicit RMSNormImpl(int64_t hidden)
      : weight(register_parameter("weight", torch::ones({hidden}))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return weight * (x * torch::rsqrt(x.pow(2).mean(-1, true) + 1e-6));
  }
  torch::Tensor weight;
};
TORCH_MODULE(RMSNorm);

struct LlamaAttentionImpl : torch::nn::Module {
  explicit LlamaAttentionImpl(const LlamaOptions& o)
      : heads(o.heads), kv_heads(o.kv_heads), head_dim(o.hidden / o.heads), repeat(o.repeat_kv) {
    q_proj = register_module("q_proj", no_bias(o.hidden, heads * head_dim));
    k_proj = register_module("k_proj", no_bias(o.hidden, kv_heads * head_dim));
    v_proj = register_module("v_proj", no_bias(o.hidden, kv_heads * head_dim));
    o_proj = register_module("o_proj", no_bias(heads * head_dim, o.hidden));
  }

  torch::Tensor rotate(const torch::Tensor& x) const {
    const auto T = x.size(2);
    const auto halves = torch::arange(0, head_dim, 2, x.device());
    const auto frequency = torch::pow(10000.0, -halves / double(head_dim));
    const auto angle = torch::arange(T, x.device()).unsqueeze(1) * frequency.unsqueeze(0);
    const auto cos = torch::cat({angle.cos(), angle.cos()}, -1);
    const auto sin = torch::cat({angle.sin(), angle.sin()}, -1);
    const auto first = x.slice(-1, 0, head_dim / 2), second = x.slice(-1, head_dim / 2, head_dim);
    return x * cos + torch::cat({-second, first}, -1) * sin;
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto B = x.size(0), T = x.size(1);
    const auto q = rotate(q_proj(x).view({B, T, heads, head_dim}).transpose(1, 2));
    auto k = rotate(k_proj(x).view({B, T, kv_heads, head_dim}).transpose(1, 2));
    auto v = v_proj(x).view({B, T, kv_heads, head_dim}).transpose(1, 2);
    if (repeat) {
      k = k.repeat_interleave(heads / kv_heads, 1);
      v = v.repeat_interleave(heads / kv_heads, 1);
    }
    const auto y = torch::scaled_dot_product_attention(q, k, v, {}, 0.0, true, {}, !repeat);
    return o_proj(y.transpose(1, 2).contiguous().view({B, T, -1}));
  }

  int64_t heads, kv_heads, head_dim;
  bool repeat;
  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
};
TORCH_MODULE(LlamaAttention);

struct LlamaBlockImpl : torch::nn::Module {
  explicit LlamaBlockImpl(const LlamaOptions& o) {
    input_norm = register_module("input_norm", RMSNorm(o.hidden));
    self_attn = register_module("self_attn", LlamaAttention(o));
    post_norm = register_module("post_norm", RMSNorm(o.hidden));
    gate_proj = register_module("gate_proj", no_bias(o.hidden, o.inner));
    up_proj = register_module("up_proj", no_bias(o.hidden, o.inner));
    down_proj = register_module("down_proj", no_bias(o.inner, o.hidden));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = x + self_attn(input_norm(x));
    const auto h = post_norm(x);
    return x + down_proj(torch::silu(gate_proj(h)) * up_proj(h));
  }

  RMSNorm input_norm{nullptr}, post_norm{nullptr};
  LlamaAttention self_attn{nullptr};
  torch::nn::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
};
TORCH_MODULE(LlamaBlock);

struct LlamaImpl : torch::nn::Module {
  explicit LlamaImpl(const LlamaOptions& o) {
    embed_tokens = register_module("embed_tokens", torch::nn::Embedding(o.vocabulary, o.hidden));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < o.layers; ++i) layers->push_back(LlamaBlock(o));
    norm = register_module("norm", RMSNorm(o.hidden));
    lm_head = register_module("lm_head", no_bias(o.hidden, o.vocabulary));
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = embed_tokens(tokens);
    for (const auto& layer : *layers) x = layer->as<LlamaBlock>()->forward(x);
    return lm_head(norm(x));
  }

  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers{nullptr};
  RMSNorm norm{nullptr};
  torch::nn::Linear lm_head{nullptr};
};
TORCH_MODULE(Llama);

}  // namespace models
