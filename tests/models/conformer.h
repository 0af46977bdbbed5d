#pragma once

#include <torch/torch.h>

// A Conformer for speech: strided convolutions over the spectrogram, half-step feed-forward modules
// around attention and a convolution module (pointwise, gated, depthwise, batch norm), a head for
// connectionist temporal classification.
namespace models {

struct ConformerOptions {
  int64_t features = 20, channels = 6, dim = 40, heads = 4, ff = 92, kernel = 5, layers = 2,
          classes = 11;
};

struct ConformerFeedForwardImpl : torch::nn::Module {
  ConformerFeedForwardImpl(int64_t dim, int64_t inner) {
    net = register_module(
        "net", torch::nn::Sequential(torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})),
                                     torch::nn::Linear(dim, inner), torch::nn::SiLU(),
                                     torch::nn::Dropout(0.0), torch::nn::Linear(inner, dim),
                                     torch::nn::Dropout(0.0)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return net->forward(x); }
  torch::nn::Sequential net{nullptr};
};
TORCH_MODULE(ConformerFeedForward);

struct ConformerAttentionImpl : torch::nn::Module {
  ConformerAttentionImpl(int64_t dim, int64_t heads) : heads(heads) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})));
    to_q =
        register_module("to_q", torch::nn::Linear(torch::nn::LinearOptions(dim, dim).bias(false)));
    to_kv = register_module("to_kv",
                            torch::nn::Linear(torch::nn::LinearOptions(dim, 2 * dim).bias(false)));
    to_out = register_module("to_out", torch::nn::Linear(dim, dim));
  }

  torch::Tensor forward(torch::Tensor x, const torch::Tensor& padding) {
    x = norm(x);
    const auto n = x.size(1);
    auto q = to_q(x);
    auto kv = to_kv(x).chunk(2, -1);
    const auto rearrange = [&](const torch::Tensor& t) {
      return t.reshape({t.size(0), n, heads, -1}).permute({0, 2, 1, 3});
    };
    q = rearrange(q);
    const auto k = rearrange(kv[0]), v = rearrange(kv[1]);
    auto dots = torch::einsum("bhid,bhjd->bhij", {q, k}) * std::pow(q.size(-1), -0.5);
    dots = dots.masked_fill(padding.unsqueeze(1).unsqueeze(1), -1e9);
    const auto out = torch::einsum("bhij,bhjd->bhid", {dots.softmax(-1), v});
    return to_out(out.permute({0, 2, 1, 3}).flatten(2));
  }

  int64_t heads;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear to_q{nullptr}, to_kv{nullptr}, to_out{nullptr};
};
TORCH_MODULE(ConformerAttention);

struct ConformerConvolutionImpl : torch::nn::Module {
  ConformerConvolutionImpl(int64_t dim, int64_t kernel) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})));
    pointwise1 = register_module("pointwise1", torch::nn::Conv1d(dim, 2 * dim, 1));
    depthwise =
        register_module("depthwise", torch::nn::Conv1d(torch::nn::Conv1dOptions(dim, dim, kernel)
                                                           .padding(kernel / 2)
                                                           .groups(dim)
                                                           .bias(false)));
    batch_norm = register_module("batch_norm", torch::nn::BatchNorm1d(dim));
    pointwise2 = register_module("pointwise2", torch::nn::Conv1d(dim, dim, 1));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = norm(x).transpose(1, 2);
    x = torch::nn::functional::glu(pointwise1(x), torch::nn::functional::GLUFuncOptions(1));
    x = batch_norm(depthwise(x));
    x = pointwise2(torch::silu(x));
    return x.transpose(1, 2);
  }

  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Conv1d pointwise1{nullptr}, depthwise{nullptr}, pointwise2{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
};
TORCH_MODULE(ConformerConvolution);

struct ConformerBlockImpl : torch::nn::Module {
  explicit ConformerBlockImpl(const ConformerOptions& o) {
    ff1 = register_module("ff1", ConformerFeedForward(o.dim, o.ff));
    attention = register_module("attention", ConformerAttention(o.dim, o.heads));
    convolution = register_module("convolution", ConformerConvolution(o.dim, o.kernel));
    ff2 = register_module("ff2", ConformerFeedForward(o.dim, o.ff));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.dim})));
  }

  torch::Tensor forward(torch::Tensor x, const torch::Tensor& padding) {
    x = x + 0.5 * ff1(x);
    x = x + attention(x, padding);
    x = x + convolution(x);
    x = x + 0.5 * ff2(x);
    return norm(x);
  }

  ConformerFeedForward ff1{nullptr}, ff2{nullptr};
  ConformerAttention attention{nullptr};
  ConformerConvolution convolution{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(ConformerBlock);

struct ConformerImpl : torch::nn::Module {
  explicit ConformerImpl(const ConformerOptions& o = {}) {
    subsampling = register_module(
        "subsampling",
        torch::nn::Sequential(
            torch::nn::Conv2d(torch::nn::Conv2dOptions(1, o.channels, 3).stride(2).padding(1)),
            torch::nn::ReLU(),
            torch::nn::Conv2d(
                torch::nn::Conv2dOptions(o.channels, o.channels, 3).stride(2).padding(1)),
            torch::nn::ReLU()));
    input_projection = register_module(
        "input_projection", torch::nn::Linear(o.channels * ((o.features + 3) / 4), o.dim));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < o.layers; ++i) blocks->push_back(ConformerBlock(o));
    classifier = register_module("classifier", torch::nn::Linear(o.dim, o.classes));
  }

  /// spectrogram (batch, time, features), lengths (batch) in frames -> log probabilities (batch,
  /// time / 4, classes).
  torch::Tensor forward(const torch::Tensor& spectrogram, const torch::Tensor& lengths) {
    auto x = subsampling->forward(spectrogram.unsqueeze(1));
    x = x.permute({0, 2, 1, 3}).contiguous().flatten(2);
    x = input_projection(x);
    const auto frames = (lengths + 3).floor_divide(4);
    const auto padding = torch::arange(x.size(1)).unsqueeze(0) >= frames.unsqueeze(1);
    for (const auto& block : *blocks) x = block->as<ConformerBlock>()->forward(x, padding);
    return torch::log_softmax(classifier(x), -1);
  }

  torch::nn::Sequential subsampling{nullptr};
  torch::nn::Linear input_projection{nullptr}, classifier{nullptr};
  torch::nn::ModuleList blocks{nullptr};
};
TORCH_MODULE(Conformer);

}  // namespace models
