#pragma once

#include <torch/torch.h>

#include "tests/lazy_device_test/late_tensors.h"
#include "tests/lazy_device_test/lazy_device.h"
#include "tests/support/seeded.h"

// A model whose activations are worth moving, on the CPU and on the simulated device.
namespace oslo::offloaded_model_test {

using at::Tensor;
using test::kLazy;

/// Activations and weights are larger than what is too small to be moved.
inline constexpr int64_t kWidth = 520, kRows = 506, kLayers = 3;

inline Tensor on(c10::Device device, const Tensor& content) {
  return device == kLazy ? test::late(content) : content;
}

/// Widths of the blocks differ, so that memory of one does not fit another.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t i, c10::Device device) {
    const int64_t inner = kWidth + 13 * i;
    up = register_parameter("up", on(device, torch::randn({kWidth, inner}) / 23));
    down = register_parameter("down", on(device, torch::randn({inner, kWidth}) / 23));
  }
  Tensor forward(const Tensor& x) { return x + torch::mm(torch::sin(torch::mm(x, up)), down); }

  Tensor up, down;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(c10::Device device) {
    for (int64_t i = 0; i < kLayers; ++i) h->push_back(Block(i, device));
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *h) x = block->as<Block>()->forward(x);
    return x;
  }
  torch::nn::ModuleList h{register_module("h", torch::nn::ModuleList())};
};
TORCH_MODULE(Net);

inline Net make(c10::Device device) {
  return test::make_seeded(3, [&] { return Net(device); });
}

/// Of unequal sizes.
inline Tensor batch(int step) {
  return test::make_seeded(20 + step, [&] { return torch::randn({kRows + 31 * step, kWidth}); });
}

}  // namespace oslo::offloaded_model_test
