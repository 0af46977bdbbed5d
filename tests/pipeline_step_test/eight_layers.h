#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

// A model of eight linear layers, its batches and its loss.
namespace oslo::test {

constexpr int kWidth = 5;

inline torch::nn::Sequential eight_layers() {
  torch::nn::Sequential layers;
  for (int i = 0; i < 8; ++i) {
    layers->push_back(torch::nn::Linear(kWidth, kWidth));
    layers->push_back(torch::nn::Tanh());
  }
  return layers;
}

inline std::vector<torch::Tensor> rows(int64_t number) {
  return {torch::randn({number, kWidth}, torch::kDouble),
          torch::randn({number, kWidth}, torch::kDouble)};
}

/// A mean over rows.
inline const auto mse = [](auto& model, const std::vector<torch::Tensor>& micro) {
  return torch::nn::functional::mse_loss(model->forward(micro[0]), micro[1]);
};

}  // namespace oslo::test
