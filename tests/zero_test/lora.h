#pragma once

#include <functional>
#include <string>

#include "tests/zero_test/net.h"

namespace oslo::zero_test {

/// Plain LibTorch. A linear layer that stays as it is, and an adapter of few columns beside it (Hu
/// et al. 2021, arXiv 2106.09685).
struct AdaptedImpl : torch::nn::Module {
  static constexpr int64_t kRank = 8;
  AdaptedImpl(int64_t in, int64_t out) {
    base = register_module("base", torch::nn::Linear(in, out));
    const auto without_bias = [](int64_t of, int64_t to) {
      return torch::nn::LinearOptions(of, to).bias(false);
    };
    a = register_module("a", torch::nn::Linear(without_bias(in, kRank)));
    b = register_module("b", torch::nn::Linear(without_bias(kRank, out)));
  }
  Tensor forward(const Tensor& x) { return base(x) + b(a(x)) * 2; }
  torch::nn::Linear base{nullptr}, a{nullptr}, b{nullptr};
};
TORCH_MODULE(Adapted);

constexpr int kReplicas = 2;
constexpr int64_t kWords = 37, kLength = 7, kWidth = 21, kHeads = 3, kBlocks = 3;

struct AdaptedBlockImpl : torch::nn::Module {
  AdaptedBlockImpl() {
    const torch::nn::LayerNormOptions norm({kWidth});
    ln_1 = register_module("ln_1", torch::nn::LayerNorm(norm));
    attention = register_module("attention", Adapted(kWidth, 3 * kWidth));
    projection = register_module("projection", torch::nn::Linear(kWidth, kWidth));
    ln_2 = register_module("ln_2", torch::nn::LayerNorm(norm));
    up = register_module("up", torch::nn::Linear(kWidth, 43));
    down = register_module("down", Adapted(43, kWidth));
  }
  Tensor forward(Tensor x) {
    const auto n = x.size(0);
    const auto parts = attention(ln_1(x)).view({n, kLength, 3, kHeads, kWidth / kHeads}).unbind(2);
    const auto by_head = [&](int i) { return parts[i].transpose(1, 2); };
    const Tensor y = torch::scaled_dot_product_attention(by_head(0), by_head(1), by_head(2), {},
                                                         0.0, /*is_causal=*/true);
    x = x + projection(y.transpose(1, 2).reshape({n, kLength, kWidth}));
    return x + down(torch::gelu(up(ln_2(x))));
  }
  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  Adapted attention{nullptr}, down{nullptr};
  torch::nn::Linear projection{nullptr}, up{nullptr};
};
TORCH_MODULE(AdaptedBlock);

/// A GPT-2 whose head is its table, with adapters in its blocks; `freeze` leaves these alone.
struct AdaptedGptImpl : torch::nn::Module {
  AdaptedGptImpl() {
    wte = register_module("wte", torch::nn::Embedding(kWords, kWidth));
    wpe = register_module("wpe", torch::nn::Embedding(kLength, kWidth));
    for (int64_t i = 0; i < kBlocks; ++i) h->push_back(AdaptedBlock());
    register_module("h", h);
    ln_f = register_module("ln_f", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  }
  /// tokens [N, 7]; logits [N, 7, 37]
  Tensor forward(const Tensor& tokens) {
    Tensor x = wte(tokens) + wpe(torch::arange(kLength));
    for (int64_t i = 0; i < kBlocks; ++i) x = around ? around(i, x) : block(i, x);
    return torch::matmul(ln_f(x), wte->weight.t());
  }
  Tensor block(int64_t i, const Tensor& x) { return h[i]->as<AdaptedBlock>()->forward(x); }
  void freeze(const std::function<bool(const std::string& name)>& trains) {
    for (const auto& each : named_parameters()) each.value().set_requires_grad(trains(each.key()));
  }
  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f{nullptr};
  /// In the place of `block`.
  std::function<Tensor(int64_t i, const Tensor& x)> around;
};
TORCH_MODULE(AdaptedGpt);

inline bool is_adapter(const std::string& name) {
  return name.ends_with(".a.weight") || name.ends_with(".b.weight");
}

/// Tokens and targets of a replica's five rows.
inline Tensors tokens_of(int step, int replica) {
  const Tensor place = torch::arange(5 * kLength) * 11 + 101 * step + 17 * replica;
  return {place.remainder(kWords).view({5, kLength}),
          (place * 3 + 1).remainder(kWords).view({5, kLength})};
}

inline Tensor loss_of(const Tensor& logits, const Tensors& rows) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), rows[1].flatten());
}

}  // namespace oslo::zero_test
