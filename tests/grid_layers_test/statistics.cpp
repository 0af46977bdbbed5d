// Norms of large numbers: statistics are those of float64, whoever holds the features.
#include "tests/grid_layers_test/grid_layers.h"

namespace grid_layers {
namespace {

template <typename Mode>
class Statistics : public ::testing::Test {};
/// Those that cut features: where they are whole LibTorch's own norm runs, whose float32 statistics
/// are off by 1e-3 here.
using ModesThatCutFeatures = ::testing::Types<Flat, Deep, Cube, Rectangle, Column, Box>;
TYPED_TEST_SUITE(Statistics, ModesThatCutFeatures);

/// Mean 10,000 and spread 1, each rank's part with a mean of its own: 1024 features, and a number
/// that divides by nothing.
TYPED_TEST(Statistics, KeepWhatFloat32Has) {
  for (const int64_t features : {1024, 1021}) {
    const Tensor drift = torch::linspace(-1, 1, features, torch::kDouble);
    const Tensor x = (numbers({6, features}) + drift + 10000).to(torch::kFloat);
    const Tensor reference = placed_values::leaf(x.to(torch::kDouble));
    const Tensor expected = torch::layer_norm(reference, {features});
    const Tensor gradient = numbers({6, features}, 1.9);
    expected.backward(gradient);
    on_axes(TypeParam::axes(), [&](const oslo::MPU& mpu) {
      typename TypeParam::LayerNorm norm(features, mpu);
      const Tensor own = placed_values::leaf(x);
      const Tensor y = norm(own);
      y.backward(gradient.to(torch::kFloat));
      const auto difference = [](const Tensor& one, const Tensor& other) {
        return (full_tensor(one).detach().to(torch::kDouble) - other).abs().max().item<double>();
      };
      EXPECT_LT(difference(y, expected.detach()), 1e-5);
      EXPECT_LT(difference(own.grad(), reference.grad()), 1e-5);
    });
  }
}

}  // namespace
}  // namespace grid_layers
