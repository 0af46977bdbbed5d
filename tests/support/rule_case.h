#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mpu/grid/mpu.h"
#include "parallelizers/placement/carrier/access.h"
#include "tests/support/axis_ranks.h"

// One operator on one device against the same operator on placed tensors: results, gradients of
// every operand (by backward with a global gradient and through a sum of products), what was
// gathered, and how many all-reduces it took.
namespace rule_case {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;
using oslo::Placement;

/// A whole tensor and how it is cut, one placement an axis. None: an ordinary tensor.
struct Operand {
  at::Tensor whole;
  std::vector<Placement> placements;
};

/// Data is made on one thread, before the ranks start: ranks as threads share the generator.
inline Operand random(at::IntArrayRef sizes, std::vector<Placement> placements = {}) {
  return {at::randn(sizes, at::kDouble), std::move(placements)};
}

inline Operand integers(at::IntArrayRef sizes, int64_t high,
                        std::vector<Placement> placements = {}) {
  return {at::randint(high, sizes, at::kLong), std::move(placements)};
}

inline Operand mask(at::IntArrayRef sizes, std::vector<Placement> placements = {}) {
  return {at::rand(sizes).gt(0.4), std::move(placements)};
}

inline Operand numbers(std::vector<int64_t> values) {
  return {at::tensor(values, at::kLong), {}};
}

/// Each row a permutation: no element comes twice.
inline Operand orders(at::IntArrayRef sizes, std::vector<Placement> placements = {}) {
  return {at::rand(sizes).argsort(int64_t{1}), std::move(placements)};
}

inline Placement cut(int64_t dim, int64_t blocks = 1, int64_t unit = 1) {
  return Placement::shard(dim, blocks, unit);
}

inline Placement whole() {
  return Placement::replicate();
}

struct Case {
  std::string name;
  std::vector<Operand> operands;
  Function function;
  int64_t gathers = 0;  ///< how many gathers the report counts, forward and backward; -1: any
  std::optional<int64_t> all_reduces = {};  ///< forward and backward, where the case promises it
  std::string gathered_operator = {};       ///< which the report must name
};

using X = const Tensors&;

/// A function with one result.
template <typename OneResult>
Function of(OneResult function) {
  return [function](X x) -> Tensors { return {function(x)}; };
}

/// A case with one operand and one result.
inline Case one(const std::string& name, Operand operand,
                const std::function<at::Tensor(const at::Tensor&)>& function, int64_t gathers = 0,
                std::optional<int64_t> all_reduces = {},
                const std::string& gathered_operator = {}) {
  return {name,    {std::move(operand)}, of([function](X x) { return function(x[0]); }),
          gathers, all_reduces,          gathered_operator};
}

/// Operand `i`; none where the case has fewer.
inline at::Tensor operand_or_none(X x, size_t i) {
  return x.size() > i ? x[i] : at::Tensor();
}

/// Results and gradients of one run.
struct Outcome {
  Tensors results, gradients;
};

inline Tensors leaves_of(const Case& test) {
  Tensors leaves;
  for (const Operand& operand : test.operands) {
    leaves.push_back(operand.whole.detach().clone());
    leaves.back().set_requires_grad(operand.whole.is_floating_point());
  }
  return leaves;
}

inline Tensors gradients_of(const Tensors& leaves) {
  Tensors gradients;
  for (const at::Tensor& leaf : leaves) gradients.push_back(leaf.grad());
  return gradients;
}

/// The results that a gradient goes through, each with its upstream gradient.
inline std::pair<Tensors, Tensors> with_upstream(const Tensors& results, const Tensors& upstream) {
  std::pair<Tensors, Tensors> chosen;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].requires_grad()) continue;
    chosen.first.push_back(results[i]);
    chosen.second.push_back(upstream[i]);
  }
  return chosen;
}

inline Outcome on_one_device(const Case& test, Tensors& upstream) {
  const Tensors leaves = leaves_of(test);
  Outcome outcome{test.function(leaves), {}};
  for (const at::Tensor& result : outcome.results) {
    upstream.push_back(at::randn(result.sizes(), at::kDouble)
                           .to(result.is_floating_point() ? result.scalar_type() : at::kDouble));
  }
  const auto [results, gradients] = with_upstream(outcome.results, upstream);
  if (!results.empty()) torch::autograd::backward(results, gradients);
  for (at::Tensor& result : outcome.results) result = result.detach();
  outcome.gradients = gradients_of(leaves);
  return outcome;
}

/// In double and float the order of a sum; of half precision a few roundings, of results and of the
/// values on the way to a gradient.
inline double tolerance_of(at::ScalarType type) {
  if (type == at::kHalf) return 8 * 0x1p-11;
  if (type == at::kBFloat16) return 8 * 0x1p-8;
  return type == at::kDouble ? 1e-10 : 1e-5;
}

inline void expect_equal(const at::Tensor& actual, const at::Tensor& expected,
                         const std::string& what) {
  // A gradient that nothing flowed to is undefined on one device and may be zeros here.
  if (!expected.defined()) {
    EXPECT_TRUE(!actual.defined() || actual.abs().max().item<double>() == 0) << what;
    return;
  }
  ASSERT_TRUE(actual.defined()) << what << " is undefined";
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  const double tolerance = tolerance_of(expected.scalar_type());
  EXPECT_TRUE(at::allclose(actual, expected, tolerance, tolerance, /*equal_nan=*/true))
      << what << " differs:\n"
      << actual << "\n"
      << expected;
}

inline void expect_same(const Outcome& actual, const Outcome& expected, const std::string& what) {
  ASSERT_EQ(actual.results.size(), expected.results.size()) << what;
  for (size_t i = 0; i < expected.results.size(); ++i) {
    ASSERT_EQ(actual.results[i].sizes(), expected.results[i].sizes()) << what;
    expect_equal(oslo::full_tensor(actual.results[i]).detach(), expected.results[i],
                 c10::str(what, ", result ", i));
  }
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    expect_equal(actual.gradients[i], expected.gradients[i],
                 c10::str(what, ", gradient of operand ", i));
  }
}

inline int64_t all_reduces(const oslo::Mesh& mesh) {
  int64_t calls = 0;
  for (int axis = 0; axis < mesh.axes(); ++axis) {
    calls += mesh.axis(axis)->ledger().total("all_reduce").calls;
  }
  return calls;
}

inline std::string text_of(const oslo::GatherReport& report) {
  std::string text;
  for (const auto& entry : report.entries()) {
    text += c10::str("\n  ", entry.operation, ": ", entry.reason, " x ", entry.calls);
  }
  return text;
}

/// One run on placed operands. `upstream` is given to backward as it is, or multiplied and summed.
inline Outcome on_mesh(const Case& test, const oslo::MeshPtr& mesh, const Tensors& upstream,
                       bool by_product) {
  const Tensors leaves = leaves_of(test);
  Tensors operands;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto& placements = test.operands[i].placements;
    operands.push_back(placements.empty() ? leaves[i]
                                          : oslo::distribute(leaves[i], mesh, placements));
  }
  Outcome outcome{test.function(operands), {}};
  const auto [results, gradients] = with_upstream(outcome.results, upstream);
  if (by_product && !results.empty()) {
    at::Tensor total;
    for (size_t i = 0; i < results.size(); ++i) {
      const at::Tensor product = (results[i] * gradients[i]).sum();
      total = total.defined() ? total + product : product;
    }
    total.backward();
  } else if (!results.empty()) {
    torch::autograd::backward(results, gradients);
  }
  outcome.gradients = gradients_of(leaves);
  return outcome;
}

inline void check(const Case& test, const oslo::MeshPtr& mesh, const Tensors& upstream,
                  const Outcome& expected) {
  context_of(mesh)->gathers().clear();
  const int64_t before = all_reduces(*mesh);
  const Outcome direct = on_mesh(test, mesh, upstream, /*by_product=*/false);
  const int64_t used = all_reduces(*mesh) - before;
  if (test.gathers >= 0) {
    EXPECT_EQ(context_of(mesh)->gathers().calls(), test.gathers)
        << test.name << text_of(context_of(mesh)->gathers());
  }
  EXPECT_EQ(used, test.all_reduces.value_or(used)) << test.name;
  if (!test.gathered_operator.empty()) {
    EXPECT_NE(text_of(context_of(mesh)->gathers()).find(test.gathered_operator), std::string::npos)
        << test.name << text_of(context_of(mesh)->gathers());
  }
  expect_same(direct, expected, test.name + ", backward(gradient)");
  expect_same(on_mesh(test, mesh, upstream, /*by_product=*/true), expected,
              test.name + ", sum of products");
}

/// Runs `body` on a mesh of these axis sizes (one or two), a thread a rank.
inline void on_ranks(const std::vector<int>& axes,
                     const std::function<void(const oslo::MeshPtr&)>& body) {
  std::vector<oslo::Axis> named;
  std::vector<std::string> names;
  for (const int size : axes) {
    names.push_back(c10::str("axis_", names.size()));
    named.push_back({names.back(), size});
  }
  oslo::test::on_axes(
      named, [&](const oslo::MPU& mpu) { body(mpu.mesh(names)); }, std::chrono::seconds(60));
}

/// Every case on a mesh of these axis sizes.
inline void expect(const std::vector<int>& axes, const std::vector<Case>& cases) {
  std::vector<Tensors> upstream(cases.size());
  std::vector<Outcome> expected;
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].name);
    expected.push_back(on_one_device(cases[i], upstream[i]));
  }
  on_ranks(axes, [&](const oslo::MeshPtr& mesh) {
    for (size_t i = 0; i < cases.size(); ++i) {
      try {
        check(cases[i], mesh, upstream[i], expected[i]);
      } catch (const std::exception& error) {
        oslo::fail(cases[i].name, ": ", error.what());
      }
    }
  });
}

}  // namespace rule_case
