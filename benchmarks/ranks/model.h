#pragma once

#include <torch/torch.h>

// The GPT that both sides of a comparison train: benchmarks/peers/model.py is its twin, with the
// same names, so that `fill` gives both the same weights. Of several `parts` it has the sizes that
// one of as many ranks has when all is cut: the stream is whole, and heads, what lies inside of
// attention and of the MLP, and words are one part.
namespace bench {

/// What Python's torch.nn.Linear runs, one operator; that of C++ multiplies and adds in two.
inline torch::Tensor linear(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return torch::linear(x, layer->weight, layer->bias);
}

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(int64_t width, int64_t heads, int64_t parts) : heads(heads / parts) {
    for (auto& [name, layer] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}}) {
      *layer = register_module(name, torch::nn::Linear(width, width / parts));
    }
    proj = register_module("proj", torch::nn::Linear(width / parts, width));
  }

  torch::Tensor forward(const torch::Tensor& x) { return linear(proj, attend(x)); }

  /// All but the projection.
  torch::Tensor attend(const torch::Tensor& x) {
    const auto query = linear(q, x);
    const auto B = query.size(0), T = query.size(1), C = query.size(2);
    const auto by_head = [&](const torch::Tensor& y) {
      return y.view({B, T, heads, C / heads}).transpose(1, 2);
    };
    const auto y = torch::scaled_dot_product_attention(by_head(query), by_head(linear(k, x)),
                                                       by_head(linear(v, x)), {}, 0.0,
                                                       /*is_causal=*/true);
    return y.transpose(1, 2).contiguous().view({B, T, C});
  }

  int64_t heads;
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, proj{nullptr};
};
TORCH_MODULE(Attention);

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t heads, int64_t parts)
      : ln1(register_module("ln1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        attn(register_module("attn", Attention(width, heads, parts))),
        ln2(register_module("ln2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        fc(register_module("fc", torch::nn::Linear(width, 4 * width / parts))),
        proj(register_module("proj", torch::nn::Linear(4 * width / parts, width))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = x + attn(ln1(x));
    return x + linear(proj, torch::gelu(linear(fc, ln2(x))));
  }

  torch::nn::LayerNorm ln1;
  Attention attn;
  torch::nn::LayerNorm ln2;
  torch::nn::Linear fc, proj;
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  /// `tied`: the table is the head, too.
  GptImpl(int64_t vocabulary, int64_t positions, int64_t width, int64_t heads, int64_t layers,
          bool tied = true, int64_t parts = 1)
      : wte(register_module("wte", torch::nn::Embedding(vocabulary / parts, width))),
        wpe(register_module("wpe", torch::nn::Embedding(positions, width))),
        h(register_module("h", torch::nn::ModuleList())),
        lnf(register_module("lnf", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))) {
    for (int64_t layer = 0; layer < layers; ++layer) h->push_back(Block(width, heads, parts));
    if (!tied) {
      head = register_module(
          "head", torch::nn::Linear(torch::nn::LinearOptions(width, vocabulary).bias(false)));
    }
    fill();
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = wte(tokens) + wpe(torch::arange(tokens.size(1), tokens.options()));
    for (const auto& block : *h) x = block->as<Block>()->forward(x);
    return torch::matmul(lnf(x), (head ? head->weight : wte->weight).t());
  }

  /// Waves in place of random numbers, which two languages would draw alike but in another order.
  void fill() {
    const torch::NoGradGuard no_grad;
    int64_t wave = 0;
    for (auto& parameter : named_parameters()) {
      torch::Tensor& p = parameter.value();
      ++wave;
      if (p.dim() < 2) {
        if (parameter.key().ends_with("bias")) p.zero_();
        continue;
      }
      const auto place = torch::arange(p.numel(), torch::kDouble);
      p.copy_((0.1 * torch::sin(place * (0.7 + 0.01 * double(wave)))).view(p.sizes()));
    }
  }

  torch::nn::Embedding wte, wpe;
  torch::nn::ModuleList h;
  torch::nn::LayerNorm lnf;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace bench
