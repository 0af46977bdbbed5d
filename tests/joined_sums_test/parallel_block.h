#pragma once

#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "tests/support/seeded.h"

// Blocks whose attention and feed-forward network run side by side and end in one sum.
namespace joined_sums {

using torch::Tensor;

enum class Form {
  gptj,  ///< attention + feed-forward + stream, one norm
  palm,  ///< stream + attention + feed-forward, one norm, no biases
  neox,  ///< feed-forward + attention + stream, two norms
};

/// What the program does with the branch of attention before the sum.
using Look = std::function<void(Tensor& branch)>;

struct Options {
  Form form = Form::gptj;
  int64_t hidden = 12, heads = 3, inner = 22;
  double dropout = 0;
  bool as_rows = false;  ///< matrices in place of (batch, time, hidden): LibTorch calls addmm
};

struct ParallelBlockImpl : torch::nn::Module {
  explicit ParallelBlockImpl(const Options& o) : o(o) {
    const auto linear = [&](int64_t in, int64_t out) {
      return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(o.form != Form::palm));
    };
    ln_1 = register_module("ln_1", torch::nn::LayerNorm(std::vector<int64_t>{o.hidden}));
    if (o.form == Form::neox)
      ln_2 = register_module("ln_2", torch::nn::LayerNorm(std::vector<int64_t>{o.hidden}));
    q_proj = register_module("q_proj", linear(o.hidden, o.hidden));
    k_proj = register_module("k_proj", linear(o.hidden, o.hidden));
    v_proj = register_module("v_proj", linear(o.hidden, o.hidden));
    out_proj = register_module("out_proj", linear(o.hidden, o.hidden));
    fc_in = register_module("fc_in", linear(o.hidden, o.inner));
    fc_out = register_module("fc_out", linear(o.inner, o.hidden));
    drop = register_module("drop", torch::nn::Dropout(o.dropout));
  }

  Tensor apply(torch::nn::Linear& linear, const Tensor& x) const {
    if (!o.as_rows) return linear->forward(x);
    return linear->forward(x.reshape({-1, x.size(-1)})).view({x.size(0), x.size(1), -1});
  }

  Tensor attention(const Tensor& x) {
    const auto heads = [&](const Tensor& t) {
      return t.view({t.size(0), t.size(1), o.heads, o.hidden / o.heads}).transpose(1, 2);
    };
    const Tensor mixed =
        torch::scaled_dot_product_attention(heads(q_proj->forward(x)), heads(k_proj->forward(x)),
                                            heads(v_proj->forward(x)), {}, 0.0, true);
    return mixed.transpose(1, 2).reshape(x.sizes());
  }

  Tensor forward(const Tensor& x, const Look& look) {
    const Tensor normed = ln_1->forward(x);
    const Tensor mixed = attention(normed);
    if (o.as_rows) {  // the sum is one of matrices
      const auto rows = [](const Tensor& t) { return t.reshape({-1, t.size(-1)}); };
      const Tensor inner = torch::gelu(fc_in->forward(rows(normed)));
      return (out_proj->forward(rows(mixed)) + fc_out->forward(inner)).view_as(x) + x;
    }
    Tensor a = drop->forward(out_proj->forward(mixed));
    if (look) look(a);
    const Tensor inner = torch::gelu(fc_in->forward(ln_2 ? ln_2->forward(x) : normed));
    const Tensor m = drop->forward(fc_out->forward(inner));
    if (o.form == Form::palm) return x + a + m;
    return o.form == Form::neox ? m + a + x : a + m + x;
  }

  Options o;
  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, out_proj{nullptr},
      fc_in{nullptr}, fc_out{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(ParallelBlock);

struct StackImpl : torch::nn::Module {
  explicit StackImpl(const Options& o, int64_t layers = 2) {
    h = register_module("h", torch::nn::ModuleList());
    for (int64_t i = 0; i < layers; ++i) h->push_back(ParallelBlock(o));
    ln_f = register_module("ln_f", torch::nn::LayerNorm(std::vector<int64_t>{o.hidden}));
  }
  Tensor forward(const Tensor& input) {
    Tensor x = input;
    for (const auto& block : *h) x = block->as<ParallelBlock>()->forward(x, look);
    return ln_f->forward(x);
  }

  Look look;
  torch::nn::ModuleList h{nullptr};
  torch::nn::LayerNorm ln_f{nullptr};
};
TORCH_MODULE(Stack);

}  // namespace joined_sums
