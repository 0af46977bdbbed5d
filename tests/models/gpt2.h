#pragma once

#include <torch/torch.h>

#include <cmath>

// GPT-2 as many people write it: typed members, a fused query-key-value projection that is split,
// attention by hand or fused, a head that is the transposed embedding.
namespace models {

struct GPT2Options {
  int64_t vocabulary = 64, positions = 32, hidden = 64, heads = 4, layers = 2;
  bool fused_attention = true;
  double dropout = 0.0;
};

struct GPT2AttentionImpl : torch::nn::Module {
  explicit GPT2AttentionImpl(const GPT2Options& o)
      : heads(o.heads),
        fused(o.fused_attention),
        c_attn(register_module("c_attn", torch::nn::Linear(o.hidden, 3 * o.hidden))),
        c_proj(register_module("c_proj", torch::nn::Linear(o.hidden, o.hidden))),
        dropout(register_module("dropout", torch::nn::Dropout(o.dropout))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const auto B = x.size(0), T = x.size(1), C = x.size(2);
    const auto qkv = c_attn->forward(x).split(C, 2);
    const auto split_heads = [&](const torch::Tensor& t) {
      return t.view({B, T, heads, C / heads}).transpose(1, 2);
    };
    const auto q = split_heads(qkv[0]), k = split_heads(qkv[1]), v = split_heads(qkv[2]);
    torch::Tensor y;
    if (fused) {
      y = torch::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
    } else {
      auto scores = torch::matmul(q, k.transpose(-2, -1)) / std::sqrt(double(C) / double(heads));
      const auto options = torch::TensorOptions(torch::kBool).device(x.device());
      const auto hidden = torch::ones({T, T}, options).tril().logical_not();
      scores = torch::softmax(scores.masked_fill(hidden, -1e9), -1);
      y = torch::matmul(dropout->forward(scores), v);
    }
    return c_proj->forward(y.transpose(1, 2).contiguous().view({B, T, C}));
  }

  int64_t heads;
  bool fused;
  torch::nn::Linear c_attn, c_proj;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(GPT2Attention);

struct GPT2BlockImpl : torch::nn::Module {
  explicit GPT2BlockImpl(const GPT2Options& o)
      : ln_1(
            register_module("ln_1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})))),
        attn(register_module("attn", GPT2Attention(o))),
        ln_2(
            register_module("ln_2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})))),
        c_fc(register_module("c_fc", torch::nn::Linear(o.hidden, 4 * o.hidden))),
        c_proj(register_module("c_proj", torch::nn::Linear(4 * o.hidden, o.hidden))),
        dropout(register_module("dropout", torch::nn::Dropout(o.dropout))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = x + attn->forward(ln_1->forward(x));
    return x + dropout->forward(c_proj->forward(torch::gelu(c_fc->forward(ln_2->forward(x)))));
  }

  torch::nn::LayerNorm ln_1;
  GPT2Attention attn;
  torch::nn::LayerNorm ln_2;
  torch::nn::Linear c_fc, c_proj;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(GPT2Block);

struct GPT2Impl : torch::nn::Module {
  explicit GPT2Impl(const GPT2Options& o)
      : wte(register_module("wte", torch::nn::Embedding(o.vocabulary, o.hidden))),
        wpe(register_module("wpe", torch::nn::Embedding(o.positions, o.hidden))),
        h(register_module("h", torch::nn::ModuleList())),
        ln_f(register_module("ln_f",
                             torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})))) {
    for (int64_t i = 0; i < o.layers; ++i) h->push_back(GPT2Block(o));
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto places = torch::arange(tokens.size(1), tokens.device());
    auto x = wte->forward(tokens) + wpe->forward(places);
    for (const auto& block : *h) x = block->as<GPT2Block>()->forward(x);
    return torch::matmul(ln_f->forward(x), wte->weight.t());
  }

  torch::nn::Embedding wte, wpe;
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f;
};
TORCH_MODULE(GPT2);

}  // namespace models
