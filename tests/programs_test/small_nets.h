#pragma once

#include <torch/torch.h>

// What the training habits are tried on.
namespace programs {

namespace nn = torch::nn;

struct SmallNetImpl : nn::Module {
  SmallNetImpl() {
    backbone = register_module(
        "backbone", nn::Sequential(nn::Linear(7, 13), nn::GELU(),
                                   nn::LayerNorm(nn::LayerNormOptions({13})), nn::Linear(13, 11)));
    head = register_module("head", nn::Linear(11, 5));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(torch::gelu(backbone->forward(x))); }
  nn::Sequential backbone{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(SmallNet);

struct ConvNetImpl : nn::Module {
  ConvNetImpl()
      : conv1(register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 7, 3).padding(1)))),
        conv2(register_module("conv2", nn::Conv2d(nn::Conv2dOptions(7, 11, 3).stride(2)))),
        fc(register_module("fc", nn::Linear(11 * 9, 5))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = torch::silu(conv1(x.view({-1, 1, 7, 7})));
    x = torch::silu(conv2(x));
    return fc(x.view({x.size(0), -1}));
  }
  nn::Conv2d conv1, conv2;
  nn::Linear fc;
};
TORCH_MODULE(ConvNet);

constexpr int64_t kRows = 12;

}  // namespace programs
