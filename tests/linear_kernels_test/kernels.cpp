#include "parallelizers/kernels/linear_kernels.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

// The kernels by LibTorch's operators, beside plain LibTorch and its autograd.
namespace {

using Into = oslo::LinearKernels::Into;

constexpr int64_t kRows = 5, kIn = 7, kOut = 11, kNext = 3;

struct Layer {
  at::Tensor x, weight, bias;
};

/// A layer whose weight lies as nn::Linear's does (`t()` of it is handed in), or as GPT-2's own.
Layer layer(bool transposed, at::ScalarType type = at::kDouble) {
  const auto options = at::TensorOptions(type);
  at::manual_seed(3);
  return {at::randn({kRows, kIn}, options),
          transposed ? at::randn({kOut, kIn}, options).t() : at::randn({kIn, kOut}, options),
          at::randn({kOut}, options)};
}

class LinearKernels : public testing::TestWithParam<bool> {
 protected:
  oslo::LinearKernels kernels_;
};

TEST_P(LinearKernels, TheProductAndItsGelu) {
  const auto [x, weight, bias] = layer(GetParam());
  const auto with_bias = kernels_.product_and_gelu(x, weight, bias);
  const at::Tensor sum = at::linear(x, weight.t(), bias);
  EXPECT_TRUE(at::allclose(with_bias.sum, sum));
  EXPECT_TRUE(at::allclose(with_bias.activation, at::gelu(sum, "tanh")));
  EXPECT_FALSE(at::allclose(with_bias.activation, at::gelu(sum, "none")));
  const auto without = kernels_.product_and_gelu(x, weight, {});
  EXPECT_TRUE(at::allclose(without.sum, x.mm(weight)));
  EXPECT_TRUE(at::allclose(without.activation, at::gelu(x.mm(weight), "tanh")));
}

TEST_P(LinearKernels, ALayerWithGeluAndTheNextOneBackward) {
  auto [x, weight, bias] = layer(GetParam());
  const at::Tensor next = at::randn({kNext, kOut}, at::kDouble);
  for (at::Tensor* leaf : {&x, &weight, &bias}) leaf->set_requires_grad(true);
  const at::Tensor sum = x.mm(weight) + bias;
  const at::Tensor y = at::linear(at::gelu(sum, "tanh"), next);
  const at::Tensor gradient = at::randn_like(y);
  const auto expected = torch::autograd::grad({y}, {sum, bias, weight}, {gradient});

  const at::Tensor back = kernels_.product_and_gelu_backward(gradient, next, sum.detach());
  EXPECT_TRUE(at::allclose(back, expected[0]));
  // What `into` held is overwritten, not-a-numbers too, as in BLAS.
  const at::Tensor of_weight = at::full_like(weight, std::nan("")).detach();
  const at::Tensor of_bias =
      kernels_.weight_gradient(of_weight.t(), Into::overwrites, back, x, true);
  EXPECT_TRUE(at::allclose(of_weight, expected[2]));
  EXPECT_TRUE(at::allclose(of_bias, expected[1]));
  EXPECT_FALSE(back.requires_grad() || of_weight.requires_grad() || of_bias.requires_grad());
}

/// `into` lies as the weight's gradient does.
TEST_P(LinearKernels, AWeightGradientIsAddedInPlace) {
  const auto [x, weight, bias] = layer(GetParam());
  const at::Tensor gradient = at::randn({kRows, kOut}, at::kDouble);
  const at::Tensor into = at::randn_like(weight), before = into.clone();
  const void* const memory = into.data_ptr();
  const auto version = into._version();
  const at::Tensor of_bias = kernels_.weight_gradient(into.t(), Into::adds, gradient, x, true);
  EXPECT_TRUE(at::allclose(into, before + x.t().mm(gradient)));
  EXPECT_TRUE(at::allclose(of_bias, gradient.sum(0)));
  EXPECT_EQ(into.data_ptr(), memory);
  EXPECT_GT(into._version(), version) << "who saved it must hear of the write";
  EXPECT_FALSE(kernels_.weight_gradient(into.t(), Into::adds, gradient, x, false).defined());
}

INSTANTIATE_TEST_SUITE_P(Weight, LinearKernels, testing::Bool(), [](const auto& transposed) {
  return transposed.param ? "Transposed" : "AsItIs";
});

/// A main gradient in float32 loses nothing of a product of bf16 matrices: each element of theirs
/// is exact in float32, and so is the product of two.
TEST(MainGradient, TakesProductsOfHalfPrecisionUnrounded) {
  const auto [x, weight, bias] = layer(false, at::kBFloat16);
  const at::Tensor gradient = at::randn({kRows, kOut}, at::kBFloat16);
  const at::Tensor main = at::randn({kOut, kIn}), before = main.clone();
  oslo::LinearKernels kernels;
  const at::Tensor of_bias = kernels.weight_gradient(main, Into::adds, gradient, x, true);
  const at::Tensor exact = gradient.to(at::kDouble).t().mm(x.to(at::kDouble));
  const at::Tensor rounded = exact.to(at::kBFloat16).to(at::kDouble);
  const at::Tensor found = main.to(at::kDouble) - before.to(at::kDouble);
  EXPECT_TRUE(at::allclose(found, exact, 1e-6, 1e-6));
  EXPECT_FALSE(at::allclose(found, rounded, 1e-6, 1e-6)) << "the products were rounded";
  EXPECT_EQ(of_bias.scalar_type(), at::kBFloat16);
}

TEST(Kernels, TakeCpuTensorsWhateverIsLoaded) {
  const auto made = oslo::make_linear_kernels();
  const auto [x, weight, bias] = layer(true);
  EXPECT_TRUE(at::equal(made->product_and_gelu(x, weight, bias).sum, at::addmm(bias, x, weight)));
}

}  // namespace
