// cuBLASLt's kernels beside LibTorch's operators in double precision, in every type that they take,
// on sizes that they take and on others, behind a busy stream.
#include <ATen/ATen.h>
#include <ATen/cuda/Sleep.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <thread>
#include <tuple>
#include <vector>

#include "parallelizers/kernels/cublaslt/matmul.h"
#include "parallelizers/kernels/linear_kernels.h"
#include "tests/gpu/gpu.h"

namespace oslo {
namespace {

using at::Tensor;
using Into = LinearKernels::Into;

struct Sizes {
  int64_t rows, in, out;
};
void PrintTo(const Sizes& sizes, std::ostream* to) {
  *to << sizes.rows << " x " << sizes.in << " x " << sizes.out;
}

/// Type, sizes, and whether the weight lies as nn::Linear's, of which `t()` is taken.
using Case = std::tuple<at::ScalarType, Sizes, bool>;

class CublasLt : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    OSLO_NEEDS_A_GPU();
    at::manual_seed(3);
    const auto [type, sizes, transposed] = GetParam();
    const auto options = at::device(at::kCUDA).dtype(type);
    const auto [rows, in, out] = sizes;
    x = at::randn({rows, in}, options);
    weight = transposed ? at::randn({out, in}, options).t() : at::randn({in, out}, options);
    bias = at::randn({out}, options);
    gradient = at::randn({rows, out}, options);
    kernels = make_linear_kernels();
  }

  /// One rounding of the result, and sums in another order.
  void expect_close(const Tensor& found, const Tensor& exact, const char* what) {
    const bool half = found.scalar_type() != at::kFloat;
    const double epsilon = found.scalar_type() == at::kBFloat16 ? 1.0 / 128
                           : half                               ? 1.0 / 1024
                                                                : 1e-5;
    EXPECT_TRUE(at::allclose(found.to(at::kDouble), exact, epsilon, epsilon * 8)) << what;
  }

  Tensor x, weight, bias, gradient;
  std::unique_ptr<LinearKernels> kernels;
  LinearKernels plain;
};

Tensor exact(const Tensor& tensor) {
  return tensor.to(at::kDouble);
}

TEST_P(CublasLt, ProductAndGelu) {
  for (const Tensor& added : {bias, Tensor()}) {
    const auto found = kernels->product_and_gelu(x, weight, added);
    const auto wanted =
        plain.product_and_gelu(exact(x), exact(weight), added.defined() ? exact(added) : added);
    expect_close(found.sum, wanted.sum, "sum");
    expect_close(found.activation, wanted.activation, "activation");
  }
}

TEST_P(CublasLt, TheWayBackThroughTheGelu) {
  const auto options = x.options();
  const Tensor next = at::randn({6, weight.size(1)}, options);
  const Tensor sum = at::randn({x.size(0), weight.size(1)}, options);
  const Tensor of_next = at::randn({x.size(0), 6}, options);
  expect_close(kernels->product_and_gelu_backward(of_next, next, sum),
               plain.product_and_gelu_backward(exact(of_next), exact(next), exact(sum)), "sum");
}

TEST_P(CublasLt, WeightGradients) {
  for (const Into how : {Into::overwrites, Into::adds}) {
    for (const bool main : {false, true}) {
      Tensor into = at::randn_like(weight);
      if (main) into = into.to(at::kFloat);
      Tensor wanted = exact(into);
      const Tensor of_bias = kernels->weight_gradient(into.t(), how, gradient, x, true);
      plain.weight_gradient(wanted.t(), how, exact(gradient), exact(x), false);
      expect_close(into, wanted, "weight");
      EXPECT_EQ(of_bias.scalar_type(), gradient.scalar_type());
      expect_close(of_bias, exact(gradient).sum(0), "bias");
      EXPECT_FALSE(kernels->weight_gradient(into.t(), how, gradient, x, false).defined());
    }
  }
}

/// What the stream holds before is read, and what it holds afterwards reads the results.
TEST_P(CublasLt, RunBehindTheCurrentStream) {
  const auto wanted = plain.product_and_gelu(exact(x) + 1, exact(weight), exact(bias));
  c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(0);
  const c10::StreamGuard stream(
      c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool({c10::kCUDA, 0}));
  at::cuda::sleep(50'000'000);
  const Tensor late = x + 1;
  expect_close(kernels->product_and_gelu(late, weight, bias).sum, wanted.sum, "sum");
}

INSTANTIATE_TEST_SUITE_P(Kernels, CublasLt,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                          testing::Values(Sizes{48, 64, 128}, Sizes{5, 7, 11},
                                                          Sizes{1, 16, 8}),
                                          testing::Bool()));

/// Every comparison above would also hold of LibTorch's operators, which stand in where cuBLASLt
/// has no algorithm: of plain sizes it has one, of each type and epilogue, at first and when it is
/// known.
TEST(CublasLtProducts, AreTakenByCublasLt) {
  OSLO_NEEDS_A_GPU();
  using cublaslt::Beside;
  cublaslt::Matmuls matmuls;
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto options = at::device(at::kCUDA).dtype(type);
    const Tensor x = at::ones({48, 64}, options), weight = at::ones({64, 128}, options);
    const Tensor bias = at::ones({128}, options), sum = at::empty({48, 128}, options);
    const Tensor y = at::empty_like(sum), gradient = at::ones_like(sum);
    const Tensor into = at::empty({128, 64}, options), turned = at::empty({64, 128}, options);
    const Tensor main = at::empty({128, 64}, options.dtype(at::kFloat));
    for (int round = 0; round < 2; ++round) {
      const auto taken = [&](const cublaslt::Product& product) {
        EXPECT_TRUE(matmuls.run(product)) << product.name << " in " << type << ", round " << round;
      };
      taken({"GeLU", x, weight, y, false, Beside::gelu, {}, sum});
      taken({"GeLU of biased", x, weight, y, false, Beside::gelu_of_biased, bias, sum});
      taken({"GeLU backward", x, weight, y, false, Beside::gelu_backward, {}, sum});
      const Tensor left = gradient.t();
      taken({"and bias", left, x, into, true, Beside::left_summed_along_rows, bias, {}});
      taken({"turned", left, x, turned.t(), true, Beside::left_summed_along_rows, bias, {}});
      taken({"main gradient", left, x, main, true, Beside::nothing, {}, {}});
    }
  }
}

/// Threads share the choices of algorithms.
TEST(CublasLtThreads, TakeTheSameKernelsAtOnce) {
  OSLO_NEEDS_A_GPU();
  const auto kernels = make_linear_kernels();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int64_t rows = 1; rows < 40; ++rows) {
        const Tensor x = at::ones({rows, 16}, at::kCUDA), weight = at::ones({16, 8}, at::kCUDA);
        const Tensor sum = kernels->product_and_gelu(x, weight, {}).sum;
        EXPECT_TRUE(
            at::equal(sum, at::full({rows, 8}, 16, at::device(at::kCUDA).dtype(at::kFloat))));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace oslo
