#pragma once

#include <torch/torch.h>

// WaveNet: an embedding of samples, dilated causal convolutions with gated activations and a global
// condition (a speaker), residual and skip paths, a post net of 1x1 convolutions.
namespace models::wavenet {

namespace F = torch::nn::functional;

struct Options {
  int64_t levels = 13, residual = 8, skip = 10, speakers = 4, kernel = 2, layers = 3;
};

class CausalConv1dImpl : public torch::nn::Module {
 public:
  CausalConv1dImpl(int64_t in, int64_t out, int64_t kernel, int64_t dilation)
      : left_((kernel - 1) * dilation) {
    conv_ = register_module(
        "conv", torch::nn::Conv1d(torch::nn::Conv1dOptions(in, out, kernel).dilation(dilation)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return conv_->forward(F::pad(x, F::PadFuncOptions({left_, 0})));
  }

 private:
  int64_t left_;
  torch::nn::Conv1d conv_{nullptr};
};
TORCH_MODULE(CausalConv1d);

struct ResidualLayerImpl : torch::nn::Module {
  ResidualLayerImpl(const Options& o, int64_t dilation, bool last) : half(o.residual) {
    dilated = register_module("dilated", CausalConv1d(half, 2 * half, o.kernel, dilation));
    condition = register_module(
        "condition", torch::nn::Linear(torch::nn::LinearOptions(o.residual, 2 * half).bias(false)));
    if (!last) to_residual = register_module("to_residual", torch::nn::Conv1d(half, half, 1));
    to_skip = register_module("to_skip", torch::nn::Conv1d(half, o.skip, 1));
  }

  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x,
                                                  const torch::Tensor& speaker) {
    const auto z = dilated(x) + condition(speaker).unsqueeze(-1);
    const auto gated = torch::tanh(z.slice(1, 0, half)) * torch::sigmoid(z.slice(1, half));
    const auto skip = to_skip(gated);
    if (to_residual.is_empty()) return {x, skip};
    return {(x + to_residual(gated)) * 0.70710678, skip};
  }

  int64_t half;
  CausalConv1d dilated{nullptr};
  torch::nn::Linear condition{nullptr};
  torch::nn::Conv1d to_residual{nullptr}, to_skip{nullptr};
};
TORCH_MODULE(ResidualLayer);

struct WaveNetImpl : torch::nn::Module {
  explicit WaveNetImpl(const Options& o = {}) {
    embedding = register_module("embedding", torch::nn::Embedding(o.levels, o.residual));
    speaker_embedding =
        register_module("speaker_embedding", torch::nn::Embedding(o.speakers, o.residual));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < o.layers; ++i) {
      layers->push_back(ResidualLayer(o, int64_t(1) << i, i + 1 == o.layers));
    }
    post = register_module(
        "post", torch::nn::Sequential(torch::nn::ReLU(), torch::nn::Conv1d(o.skip, o.skip, 1),
                                      torch::nn::ReLU(), torch::nn::Conv1d(o.skip, o.levels, 1)));
  }

  /// Samples [batch, time] and a speaker a row to logits [batch, levels, time].
  torch::Tensor forward(const torch::Tensor& samples, const torch::Tensor& speaker) {
    auto x = embedding(samples).transpose(1, 2);
    const auto who = speaker_embedding(speaker);
    torch::Tensor skips;
    for (auto& layer : *layers) {
      torch::Tensor skip;
      std::tie(x, skip) = layer->as<ResidualLayer>()->forward(x, who);
      skips = skips.defined() ? skips + skip : skip;
    }
    return post->forward(skips);
  }

  torch::nn::Embedding embedding{nullptr}, speaker_embedding{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Sequential post{nullptr};
};
TORCH_MODULE(WaveNet);

}  // namespace models::wavenet
