#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

// T5 1.1 in the words of its paper: every product an einsum, no biases, a root-mean-square norm by
// hand, relative positions in buckets whose bias the first layer computes and all layers share, a
// gated MLP, one vocabulary for encoder, decoder and (scaled) head.
namespace models {

struct T5Config {
  int64_t vocab_size = 50, d_model = 40, d_kv = 7, num_heads = 4, d_ff = 68, num_layers = 2,
          num_buckets = 8, max_distance = 16, start_token = 0;
};

inline torch::nn::Linear t5_linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

class T5LayerNormImpl : public torch::nn::Module {
 public:
  explicit T5LayerNormImpl(int64_t hidden, double eps = 1e-6)
      : weight_(register_parameter("weight", torch::ones(hidden))), eps_(eps) {}
  torch::Tensor forward(torch::Tensor hidden_states) {
    const auto variance = hidden_states.pow(2).mean(-1, /*keepdim=*/true);
    hidden_states = hidden_states * torch::rsqrt(variance + eps_);
    return weight_ * hidden_states;
  }

 private:
  torch::Tensor weight_;
  double eps_;
};
TORCH_MODULE(T5LayerNorm);

class T5AttentionImpl : public torch::nn::Module {
 public:
  T5AttentionImpl(const T5Config& c, bool has_bias, bool bidirectional)
      : c_(c), has_bias_(has_bias), bidirectional_(bidirectional) {
    const int64_t inner = c.num_heads * c.d_kv;
    q = register_module("q", t5_linear(c.d_model, inner));
    k = register_module("k", t5_linear(c.d_model, inner));
    v = register_module("v", t5_linear(c.d_model, inner));
    o = register_module("o", t5_linear(inner, c.d_model));
    if (has_bias) {
      relative_attention_bias = register_module("relative_attention_bias",
                                                torch::nn::Embedding(c.num_buckets, c.num_heads));
    }
  }

  torch::Tensor relative_position_bucket(torch::Tensor relative_position) const {
    int64_t num_buckets = c_.num_buckets;
    auto buckets = torch::zeros_like(relative_position);
    if (bidirectional_) {
      num_buckets /= 2;
      buckets += (relative_position > 0).to(torch::kLong) * num_buckets;
      relative_position = relative_position.abs();
    } else {
      relative_position = -torch::min(relative_position, torch::zeros_like(relative_position));
    }
    const int64_t max_exact = num_buckets / 2;
    const auto is_small = relative_position < max_exact;
    auto if_large =
        max_exact + (torch::log(relative_position.to(torch::kFloat) / max_exact) /
                     std::log(double(c_.max_distance) / max_exact) * (num_buckets - max_exact))
                        .to(torch::kLong);
    if_large = torch::min(if_large, torch::full_like(if_large, num_buckets - 1));
    buckets += torch::where(is_small, relative_position, if_large);
    return buckets;
  }

  torch::Tensor compute_bias(int64_t query_length, int64_t key_length) {
    const auto context = torch::arange(query_length, torch::kLong).unsqueeze(1);
    const auto memory = torch::arange(key_length, torch::kLong).unsqueeze(0);
    const auto values = relative_attention_bias(relative_position_bucket(memory - context));
    return values.permute({2, 0, 1}).unsqueeze(0);
  }

  /// `position_bias` is made here when it is not given, and handed on to the next layers.
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& memory,
                        const torch::Tensor& mask, torch::Tensor& position_bias) {
    const auto heads = [&](const torch::Tensor& x) {
      return x.view({x.size(0), x.size(1), c_.num_heads, c_.d_kv});
    };
    const auto query = heads(q(hidden)), key = heads(k(memory)), value = heads(v(memory));
    auto scores = torch::einsum("bqhd,bkhd->bhqk", {query, key});
    if (!position_bias.defined()) {
      position_bias = has_bias_ ? compute_bias(hidden.size(1), memory.size(1))
                                : torch::zeros({1, c_.num_heads, hidden.size(1), memory.size(1)},
                                               scores.options());
      position_bias = position_bias + mask;
    }
    scores += position_bias;
    const auto weights = torch::softmax(scores, -1);
    const auto context = torch::einsum("bhqk,bkhd->bqhd", {weights, value});
    return o(context.reshape({hidden.size(0), hidden.size(1), -1}));
  }

  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr};
  torch::nn::Embedding relative_attention_bias{nullptr};

 private:
  T5Config c_;
  bool has_bias_, bidirectional_;
};
TORCH_MODULE(T5Attention);

class T5GatedFeedForwardImpl : public torch::nn::Module {
 public:
  explicit T5GatedFeedForwardImpl(const T5Config& c) {
    wi_0 = register_module("wi_0", t5_linear(c.d_model, c.d_ff));
    wi_1 = register_module("wi_1", t5_linear(c.d_model, c.d_ff));
    wo = register_module("wo", t5_linear(c.d_ff, c.d_model));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return wo(torch::gelu(wi_0(x), "tanh") * wi_1(x));
  }
  torch::nn::Linear wi_0{nullptr}, wi_1{nullptr}, wo{nullptr};
};
TORCH_MODULE(T5GatedFeedForward);

class T5BlockImpl : public torch::nn::Module {
 public:
  T5BlockImpl(const T5Config& c, bool first, bool decoder) {
    self_norm = register_module("self_norm", T5LayerNorm(c.d_model));
    self_attention = register_module("self_attention", T5Attention(c, first, !decoder));
    if (decoder) {
      cross_norm = register_module("cross_norm", T5LayerNorm(c.d_model));
      cross_attention = register_module("cross_attention", T5Attention(c, false, true));
    }
    ff_norm = register_module("ff_norm", T5LayerNorm(c.d_model));
    ff = register_module("ff", T5GatedFeedForward(c));
  }

  torch::Tensor forward(torch::Tensor x, const torch::Tensor& mask, torch::Tensor& bias,
                        const torch::Tensor& memory, const torch::Tensor& memory_mask,
                        torch::Tensor& memory_bias) {
    const auto normed = self_norm(x);
    x = x + self_attention(normed, normed, mask, bias);
    if (cross_attention) {
      x = x + cross_attention(cross_norm(x), memory, memory_mask, memory_bias);
    }
    return x + ff(ff_norm(x));
  }

  T5LayerNorm self_norm{nullptr}, cross_norm{nullptr}, ff_norm{nullptr};
  T5Attention self_attention{nullptr}, cross_attention{nullptr};
  T5GatedFeedForward ff{nullptr};
};
TORCH_MODULE(T5Block);

class T5StackImpl : public torch::nn::Module {
 public:
  T5StackImpl(const T5Config& c, torch::nn::Embedding shared, bool decoder) {
    embed_tokens = register_module("embed_tokens", std::move(shared));
    block = register_module("block", torch::nn::ModuleList());
    for (int64_t i = 0; i < c.num_layers; ++i) block->push_back(T5Block(c, i == 0, decoder));
    final_layer_norm = register_module("final_layer_norm", T5LayerNorm(c.d_model));
  }

  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& mask,
                        const torch::Tensor& memory = {}, const torch::Tensor& memory_mask = {}) {
    auto x = embed_tokens(tokens);
    torch::Tensor bias, memory_bias;
    for (const auto& each : *block) {
      x = each->as<T5BlockImpl>()->forward(x, mask, bias, memory, memory_mask, memory_bias);
    }
    return final_layer_norm(x);
  }

  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList block{nullptr};
  T5LayerNorm final_layer_norm{nullptr};
};
TORCH_MODULE(T5Stack);

class T5Impl : public torch::nn::Module {
 public:
  explicit T5Impl(const T5Config& c = {}) : c_(c) {
    shared = register_module("shared", torch::nn::Embedding(c.vocab_size, c.d_model));
    encoder = register_module("encoder", T5Stack(c, shared, false));
    decoder = register_module("decoder", T5Stack(c, shared, true));
  }

  torch::Tensor shift_right(const torch::Tensor& labels) const {
    auto shifted = labels.new_zeros(labels.sizes());
    shifted.slice(1, 1).copy_(labels.slice(1, 0, -1));
    shifted.select(1, 0).fill_(c_.start_token);
    return shifted;
  }

  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& attention_mask,
                        const torch::Tensor& labels) {
    const auto mask = (1.0 - attention_mask).mul(-1e9).unsqueeze(1).unsqueeze(1);
    const auto length = labels.size(1);
    const auto causal =
        torch::ones({length, length}).tril().sub(1).mul(1e9).unsqueeze(0).unsqueeze(0);
    const auto memory = encoder(tokens, mask);
    const auto x = decoder(shift_right(labels), causal, memory, mask);
    // The head is the embedding: rescale, as Mesh TensorFlow does.
    return torch::einsum("btd,vd->btv", {x * std::pow(double(c_.d_model), -0.5), shared->weight});
  }

  torch::nn::Embedding shared{nullptr};
  T5Stack encoder{nullptr}, decoder{nullptr};

 private:
  T5Config c_;
};
TORCH_MODULE(T5);

}  // namespace models
