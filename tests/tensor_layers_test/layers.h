#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "mpu/grid/mpu.h"
#include "parallelizers/layers/embedding.h"
#include "parallelizers/layers/linear.h"
#include "parallelizers/placement/carrier/access.h"
#include "tests/support/seeded.h"
#include "tests/support/tensor_ranks.h"

namespace oslo::layers_test {

using test::on_ranks;
using torch::Tensor;

template <typename Make>
auto seeded(const Make& make) {
  return test::make_seeded(7, make);
}

inline Tensor drawn(at::IntArrayRef sizes, bool requires_grad = true) {
  return seeded([&] { return torch::randn(sizes).set_requires_grad(requires_grad); });
}

/// What an action moved in the tensor group.
inline Traffic moved(const MPU& mpu, const std::string& operation,
                     const std::function<void()>& action) {
  const Traffic before = mpu.tensor_group()->ledger().total(operation);
  action();
  return mpu.tensor_group()->ledger().total(operation) - before;
}

/// An all-reduce of `elements` floats, as the ledger counts it.
inline Traffic all_reduce_of(int ranks, int64_t elements) {
  const int64_t received = 2 * (ranks - 1) * elements / ranks;
  return {1, received, 4 * received};
}

inline void expect_close(const Tensor& actual, const Tensor& expected, const char* what) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(torch::allclose(actual, expected, 1e-5, 1e-6))
      << what << ": largest difference " << (actual - expected).abs().max().item<double>();
}

/// Forward and backward of both layers on the same input and output gradient.
template <typename Layer, typename Native>
void expect_same(Layer& layer, Native& native, const Tensor& x) {
  const bool differentiable = x.is_floating_point();
  const Tensor own = x.detach().clone().set_requires_grad(differentiable);
  const Tensor reference = x.detach().clone().set_requires_grad(differentiable);
  const Tensor y = layer->forward(own), expected = native->forward(reference);
  expect_close(full_tensor(y).detach(), expected.detach(), "output");
  const Tensor gradient = torch::linspace(-1, 1, expected.numel()).view(expected.sizes());
  y.backward(gradient);
  expected.backward(gradient);
  if (differentiable) expect_close(own.grad(), reference.grad(), "input gradient");
  const auto parameters = layer->named_parameters();
  for (const auto& parameter : native->named_parameters()) {
    const Tensor& part = parameters[parameter.key()];
    EXPECT_EQ(part.grad().sizes(), part.sizes());
    expect_close(full_tensor(part.grad()), parameter.value().grad(), parameter.key().c_str());
  }
}

}  // namespace oslo::layers_test
