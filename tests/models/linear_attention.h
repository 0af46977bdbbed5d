#pragma once

#include <torch/torch.h>

// Sequence models without a softmax: causal linear attention by cumsum over outer products, and a
// diagonal state space with a learned decay, scanned by cumsum in the log domain, gated as in
// Mamba.
namespace models::linear_attention {

struct Options {
  int64_t vocabulary = 19, hidden = 15, heads = 5, inner = 22, state = 4;
};

struct LinearAttentionImpl : torch::nn::Module {
  LinearAttentionImpl(int64_t hidden, int64_t num_heads)
      : heads(num_heads),
        q(register_module("q", torch::nn::Linear(hidden, hidden))),
        k(register_module("k", torch::nn::Linear(hidden, hidden))),
        v(register_module("v", torch::nn::Linear(hidden, hidden))),
        o(register_module("o", torch::nn::Linear(hidden, hidden))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const auto B = x.size(0), T = x.size(1);
    const auto split = [&](const torch::Tensor& y) { return y.view({B, T, heads, -1}); };
    const auto query = torch::elu(split(q(x))) + 1, key = torch::elu(split(k(x))) + 1;
    const auto kv = torch::einsum("bthd,bthe->bthde", {key, split(v(x))}).cumsum(1);
    const auto z = torch::einsum("bthd,bthd->bth", {query, key.cumsum(1)}).reciprocal();
    return o(torch::einsum("bthd,bthde,bth->bthe", {query, kv, z}).flatten(2));
  }

  int64_t heads;
  torch::nn::Linear q, k, v, o;
};
TORCH_MODULE(LinearAttention);

struct StateSpaceImpl : torch::nn::Module {
  StateSpaceImpl(int64_t hidden, int64_t inner_size, int64_t state_size)
      : inner(inner_size), state(state_size) {
    in_proj = register_module("in_proj", torch::nn::Linear(hidden, 2 * inner));
    conv1d = register_module(
        "conv1d",
        torch::nn::Conv1d(torch::nn::Conv1dOptions(inner, inner, 3).padding(2).groups(inner)));
    x_proj = register_module("x_proj", torch::nn::Linear(inner, 2 * state));
    dt_proj = register_module("dt_proj", torch::nn::Linear(inner, inner));
    A_log = register_parameter("A_log", torch::rand({inner, state}));
    D = register_parameter("D", torch::ones({inner}));
    out_proj = register_module("out_proj", torch::nn::Linear(inner, hidden));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto T = x.size(1);
    const auto xz = in_proj(x).split(inner, -1);
    auto u = conv1d(xz[0].transpose(1, 2)).slice(2, 0, T).transpose(1, 2);
    u = torch::silu(u);
    const auto bc = x_proj(u).split_with_sizes({state, state}, -1);
    const auto dt = torch::nn::functional::softplus(dt_proj(u)) * 0.3;
    // h_t = exp(dt A) h_(t-1) + dt B u, as a weighted cumulative sum
    const auto decay = (dt.unsqueeze(-1) * -torch::exp(A_log)).cumsum(1);
    const auto drive = dt.unsqueeze(-1) * bc[0].unsqueeze(2) * u.unsqueeze(-1);
    const auto h = torch::exp(decay) * (drive * torch::exp(-decay)).cumsum(1);
    auto y = torch::einsum("btdn,btn->btd", {h, bc[1]}) + u * D;
    return out_proj(y * torch::silu(xz[1]));
  }

  int64_t inner, state;
  torch::nn::Linear in_proj{nullptr}, x_proj{nullptr}, dt_proj{nullptr}, out_proj{nullptr};
  torch::nn::Conv1d conv1d{nullptr};
  torch::Tensor A_log, D;
};
TORCH_MODULE(StateSpace);

struct LinearLmImpl : torch::nn::Module {
  explicit LinearLmImpl(const Options& o = {}) {
    embedding = register_module("embedding", torch::nn::Embedding(o.vocabulary, o.hidden));
    attention = register_module("attention", LinearAttention(o.hidden, o.heads));
    ssm = register_module("ssm", StateSpace(o.hidden, o.inner, o.state));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})));
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = embedding(tokens);
    x = x + attention(norm(x));
    x = x + ssm(norm(x));  // one norm for all, to save parameters
    return torch::matmul(norm(x), embedding->weight.t());
  }

  torch::nn::Embedding embedding{nullptr};
  LinearAttention attention{nullptr};
  StateSpace ssm{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(LinearLm);

}  // namespace models::linear_attention
