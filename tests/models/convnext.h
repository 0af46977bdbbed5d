#pragma once

#include <torch/torch.h>

// ConvNeXt (version 2's blocks, with layer scale): depthwise convolution, channels-last LayerNorm
// by permute, a LayerNorm of channels-first images by hand, global response normalization.
namespace models::convnext {

struct Options {
  std::vector<int64_t> dims{10, 16};
  std::vector<int64_t> depths{1, 2};
  int64_t classes = 7;
  double layer_scale = 0.5;
};

struct ChannelsFirstNormImpl : torch::nn::Module {
  explicit ChannelsFirstNormImpl(int64_t dim)
      : weight(register_parameter("weight", torch::ones(dim))),
        bias(register_parameter("bias", torch::zeros(dim))) {}

  torch::Tensor forward(torch::Tensor x) {
    const auto u = x.mean(1, true);
    const auto s = (x - u).pow(2).mean(1, true);
    x = (x - u) / torch::sqrt(s + 1e-6);
    return weight.unsqueeze(-1).unsqueeze(-1) * x + bias.unsqueeze(-1).unsqueeze(-1);
  }

  torch::Tensor weight, bias;
};
TORCH_MODULE(ChannelsFirstNorm);

/// Over an image with channels last.
struct ResponseNormImpl : torch::nn::Module {
  explicit ResponseNormImpl(int64_t dim)
      : gamma(register_parameter("gamma", torch::randn({1, 1, 1, dim}))),
        beta(register_parameter("beta", torch::randn({1, 1, 1, dim}))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const auto response = torch::norm(x, 2, {1, 2}, true);
    return gamma * (x * (response / (response.mean(-1, true) + 1e-6))) + beta + x;
  }

  torch::Tensor gamma, beta;
};
TORCH_MODULE(ResponseNorm);

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t dim, double layer_scale) {
    dwconv = register_module(
        "dwconv", torch::nn::Conv2d(torch::nn::Conv2dOptions(dim, dim, 7).padding(3).groups(dim)));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})));
    pwconv1 = register_module("pwconv1", torch::nn::Linear(dim, 4 * dim));
    act = register_module("act", torch::nn::GELU());
    grn = register_module("grn", ResponseNorm(4 * dim));
    pwconv2 = register_module("pwconv2", torch::nn::Linear(4 * dim, dim));
    gamma = register_parameter("gamma", layer_scale * torch::ones(dim));
  }

  torch::Tensor forward(torch::Tensor x) {
    auto input = x;
    x = dwconv(x);
    x = x.permute({0, 2, 3, 1});  // N C H W -> N H W C
    x = norm(x);
    x = pwconv1(x);
    x = act(x);
    x = grn(x);
    x = pwconv2(x);
    x = gamma * x;
    x = x.permute({0, 3, 1, 2});  // N H W C -> N C H W
    return input + x;
  }

  torch::nn::Conv2d dwconv{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear pwconv1{nullptr}, pwconv2{nullptr};
  torch::nn::GELU act{nullptr};
  ResponseNorm grn{nullptr};
  torch::Tensor gamma;
};
TORCH_MODULE(Block);

struct ConvNeXtImpl : torch::nn::Module {
  explicit ConvNeXtImpl(const Options& o = {}) {
    downsample_layers = register_module("downsample_layers", torch::nn::ModuleList());
    stages = register_module("stages", torch::nn::ModuleList());
    for (size_t i = 0; i < o.dims.size(); ++i) {
      if (i == 0) {
        downsample_layers->push_back(torch::nn::Sequential(
            torch::nn::Conv2d(torch::nn::Conv2dOptions(3, o.dims[0], 4).stride(4)),
            ChannelsFirstNorm(o.dims[0])));
      } else {
        downsample_layers->push_back(torch::nn::Sequential(
            ChannelsFirstNorm(o.dims[i - 1]),
            torch::nn::Conv2d(torch::nn::Conv2dOptions(o.dims[i - 1], o.dims[i], 2).stride(2))));
      }
      torch::nn::Sequential stage;
      for (int64_t j = 0; j < o.depths[i]; ++j) stage->push_back(Block(o.dims[i], o.layer_scale));
      stages->push_back(stage);
    }
    norm =
        register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.dims.back()})));
    head = register_module("head", torch::nn::Linear(o.dims.back(), o.classes));
  }

  torch::Tensor forward(torch::Tensor x) {
    for (size_t i = 0; i < stages->size(); ++i) {
      x = downsample_layers->at<torch::nn::SequentialImpl>(i).forward(x);
      x = stages->at<torch::nn::SequentialImpl>(i).forward(x);
    }
    return head(norm(x.mean({-2, -1})));
  }

  torch::nn::ModuleList downsample_layers{nullptr}, stages{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(ConvNeXt);

}  // namespace models::convnext
