#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>

#include "mpu/grid/mpu.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "tests/support/seeded.h"
#include "tests/support/tensor_ranks.h"

// Ranks as threads with a tensor axis, and the same values on it as on one device.
namespace placed_values {

using oslo::full_tensor;
using oslo::Placement;
using oslo::test::on_ranks;
using torch::Tensor;

/// Distinct doubles in [-1, 1], the same wherever they are asked for: no generator is shared.
inline Tensor numbers(at::IntArrayRef sizes, double start = 0.3) {
  const int64_t count = c10::multiply_integers(sizes);
  return torch::sin(torch::arange(count, torch::kDouble) * 1.7 + start).view(sizes);
}

inline Tensor leaf(const Tensor& tensor) {
  return tensor.detach().clone().set_requires_grad(true);
}

inline oslo::LayoutPtr layout_of(const oslo::MPU& mpu, at::IntArrayRef sizes, int64_t dim) {
  return std::make_shared<oslo::Layout>(
      oslo::make_layout(mpu.tensor_mesh(), {Placement::shard(dim)}, sizes));
}

inline void mark(const Tensor& parameter, const oslo::MPU& mpu, int64_t dim) {
  oslo::mark_parameter(parameter, layout_of(mpu, parameter.sizes(), dim), "w");
}

/// A parameter holding `whole`, cut on `dim`.
inline Tensor marked(const Tensor& whole, const oslo::MPU& mpu, int64_t dim = 0) {
  Tensor parameter = leaf(whole);
  mark(parameter, mpu, dim);
  return parameter;
}

inline Tensor placed(const Tensor& whole, const oslo::MPU& mpu, int64_t dim) {
  return oslo::distribute(whole, mpu.tensor_mesh(), {Placement::shard(dim)});
}

inline void expect_close(const Tensor& actual, const Tensor& expected, const std::string& what,
                         double tolerance = 1e-11) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!expected.defined()) return;
  const Tensor whole = full_tensor(actual).detach(), reference = expected.detach();
  ASSERT_EQ(whole.sizes(), reference.sizes()) << what;
  ASSERT_EQ(whole.scalar_type(), reference.scalar_type()) << what;
  EXPECT_TRUE(torch::allclose(whole, reference, tolerance, tolerance))
      << what << ": largest difference "
      << (whole.to(torch::kDouble) - reference.to(torch::kDouble)).abs().max().item<double>();
}

/// The message of the error that `action` throws; "" when it throws none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

template <typename Draw>
auto seeded(const Draw& draw) {
  return oslo::test::make_seeded(11, draw);
}

inline int64_t all_reduces(const oslo::MPU& mpu) {
  return mpu.tensor_group()->ledger().total("all_reduce").calls;
}

}  // namespace placed_values
