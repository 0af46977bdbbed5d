#pragma once

#include <torch/torch.h>

#include <cmath>
#include <optional>
#include <tuple>

// DeepSeek's multi-head latent attention: queries and keys through low ranks with norms inside, one
// rotated key that all heads share, rotation by complex numbers; a mixture with a shared expert and
// sigmoid gates, weighted densely. The weights of the experts are stacked in one parameter each.
namespace deepseek {

struct ModelArgs {
  int64_t vocab_size = 47;
  int64_t dim = 29;
  int64_t inter_dim = 34;
  int64_t n_layers = 2;
  int64_t n_heads = 5;
  int64_t q_lora_rank = 13;
  int64_t kv_lora_rank = 11;
  int64_t qk_nope_head_dim = 5;
  int64_t qk_rope_head_dim = 4;
  int64_t v_head_dim = 6;
  int64_t n_routed_experts = 3;
  int64_t moe_inter_dim = 10;
  double rope_theta = 10000.0;
};

struct RMSNormImpl : torch::nn::Module {
  explicit RMSNormImpl(int64_t d) : weight(register_parameter("weight", torch::ones({d}))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::rms_norm(x, weight.sizes(), weight.to(x.dtype()), 1e-6);
  }
  torch::Tensor weight;
};
TORCH_MODULE(RMSNorm);

inline torch::Tensor precompute_freqs_cis(const ModelArgs& args, int64_t length,
                                          torch::Dtype dtype) {
  const auto dim = args.qk_rope_head_dim;
  const auto freqs = torch::pow(args.rope_theta, -torch::arange(0, dim, 2, dtype) / double(dim));
  const auto angles = torch::outer(torch::arange(length, dtype), freqs);
  return torch::polar(torch::ones_like(angles), angles);
}

/// x [batch, length, head, rope dim], rotated pair by pair.
inline torch::Tensor apply_rotary_emb(torch::Tensor x, const torch::Tensor& freqs_cis) {
  const auto dtype = x.dtype();
  if (x.scalar_type() == torch::kBFloat16) x = x.to(torch::kFloat);
  auto z = torch::view_as_complex(x.contiguous().view({x.size(0), x.size(1), x.size(2), -1, 2}));
  const auto f = freqs_cis.view({1, z.size(1), 1, z.size(-1)});
  const auto y = torch::view_as_real(z * f).flatten(3);
  return y.to(dtype);
}

struct MLAImpl : torch::nn::Module {
  explicit MLAImpl(const ModelArgs& a) : args(a) {
    const auto qk_head_dim = a.qk_nope_head_dim + a.qk_rope_head_dim;
    const auto linear = [](int64_t in, int64_t out) {
      return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
    };
    wq_a = register_module("wq_a", linear(a.dim, a.q_lora_rank));
    q_norm = register_module("q_norm", RMSNorm(a.q_lora_rank));
    wq_b = register_module("wq_b", linear(a.q_lora_rank, a.n_heads * qk_head_dim));
    wkv_a = register_module("wkv_a", linear(a.dim, a.kv_lora_rank + a.qk_rope_head_dim));
    kv_norm = register_module("kv_norm", RMSNorm(a.kv_lora_rank));
    wkv_b = register_module(
        "wkv_b", linear(a.kv_lora_rank, a.n_heads * (a.qk_nope_head_dim + a.v_head_dim)));
    wo = register_module("wo", linear(a.n_heads * a.v_head_dim, a.dim));
    softmax_scale = 1.0 / std::sqrt(double(qk_head_dim));
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& freqs_cis,
                        const std::optional<torch::Tensor>& mask) {
    const auto bsz = x.size(0), seqlen = x.size(1);
    auto q = wq_b(q_norm(wq_a(x)));
    q = q.view({bsz, seqlen, args.n_heads, -1});
    const auto qs = torch::split(q, {args.qk_nope_head_dim, args.qk_rope_head_dim}, -1);
    const auto q_nope = qs[0];
    const auto q_pe = apply_rotary_emb(qs[1], freqs_cis);
    auto kv = wkv_a(x);
    const auto kvs = torch::split(kv, {args.kv_lora_rank, args.qk_rope_head_dim}, -1);
    kv = kvs[0];
    const auto k_pe = apply_rotary_emb(kvs[1].unsqueeze(2), freqs_cis);
    // the absorbed form: scores against the latent vectors themselves
    const auto w = wkv_b->weight.view({args.n_heads, -1, args.kv_lora_rank});
    const auto absorbed =
        torch::einsum("bshd,hdc->bshc", {q_nope, w.slice(1, 0, args.qk_nope_head_dim)});
    const auto latent = kv_norm(kv);
    auto scores = (torch::einsum("bshc,btc->bsht", {absorbed, latent}) +
                   torch::einsum("bshr,btr->bsht", {q_pe, k_pe.squeeze(2)})) *
                  softmax_scale;
    if (mask) scores += mask->unsqueeze(1);
    scores = scores.softmax(-1);
    auto y = torch::einsum("bsht,btc->bshc", {scores, latent});
    y = torch::einsum("bshc,hdc->bshd", {y, w.slice(1, -args.v_head_dim)});
    return wo(y.flatten(2));
  }

  ModelArgs args;
  double softmax_scale;
  torch::nn::Linear wq_a{nullptr}, wq_b{nullptr}, wkv_a{nullptr}, wkv_b{nullptr}, wo{nullptr};
  RMSNorm q_norm{nullptr}, kv_norm{nullptr};
};
TORCH_MODULE(MLA);

struct MoEImpl : torch::nn::Module {
  explicit MoEImpl(const ModelArgs& a) {
    const auto e = a.n_routed_experts, d = a.dim, i = a.moe_inter_dim;
    gate = register_parameter("gate", torch::randn({e, d}) / std::sqrt(double(d)));
    w1 = register_parameter("w1", torch::randn({e, i, d}) / std::sqrt(double(d)));
    w2 = register_parameter("w2", torch::randn({e, d, i}) / std::sqrt(double(i)));
    shared1 = register_module("shared1", torch::nn::Linear(d, a.inter_dim));
    shared3 = register_module("shared3", torch::nn::Linear(d, a.inter_dim));
    shared2 = register_module("shared2", torch::nn::Linear(a.inter_dim, d));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto flat = x.reshape({-1, x.size(-1)});
    auto weights = torch::linear(flat, gate).sigmoid();
    weights = weights / weights.sum(-1, true);
    const auto e = w1.size(0);
    auto h = torch::bmm(flat.unsqueeze(0).expand({e, -1, -1}), w1.transpose(1, 2));
    h = torch::bmm(torch::silu(h), w2.mT());
    const auto routed = (h * weights.t().unsqueeze(-1)).sum(0);
    const auto shared = shared2(torch::silu(shared1(flat)) * shared3(flat));
    return (routed + shared).view_as(x);
  }
  torch::Tensor gate, w1, w2;
  torch::nn::Linear shared1{nullptr}, shared2{nullptr}, shared3{nullptr};
};
TORCH_MODULE(MoE);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const ModelArgs& a)
      : attn(register_module("attn", MLA(a))),
        ffn(register_module("ffn", MoE(a))),
        attn_norm(register_module("attn_norm", RMSNorm(a.dim))),
        ffn_norm(register_module("ffn_norm", RMSNorm(a.dim))) {}
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& freqs_cis,
                        const std::optional<torch::Tensor>& mask) {
    x = x + attn(attn_norm(x), freqs_cis, mask);
    return x + ffn(ffn_norm(x));
  }
  MLA attn;
  MoE ffn;
  RMSNorm attn_norm, ffn_norm;
};
TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(const ModelArgs& a = {}) : args(a) {
    embed = register_module("embed", torch::nn::Embedding(a.vocab_size, a.dim));
    for (int64_t i = 0; i < a.n_layers; ++i) layers->push_back(Block(a));
    register_module("layers", layers);
    norm = register_module("norm", RMSNorm(a.dim));
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(a.dim, a.vocab_size).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto seqlen = tokens.size(1);
    auto h = embed(tokens);
    const auto freqs_cis = precompute_freqs_cis(args, seqlen, h.scalar_type());
    std::optional<torch::Tensor> mask;
    if (seqlen > 1) mask = torch::full({seqlen, seqlen}, -INFINITY, h.options()).triu_(1);
    for (const auto& layer : *layers) h = layer->as<Block>()->forward(h, freqs_cis, mask);
    return head(norm(h));
  }

  ModelArgs args;
  torch::nn::Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  RMSNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Transformer);

}  // namespace deepseek
