#pragma once

#include <ATen/core/enum_tag.h>
#include <c10/core/GradMode.h>

#include "mpu/grid/mpu.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/layout/weight_uses.h"
#include "tests/support/operator_measure.h"

// Other ways to give an operator a cut operand than over one axis and as an activation: nested,
// both axes cutting the same dimension, and as a marked parameter.
namespace operator_examples {

enum class Given {
  placed,
  marked,
  planned  ///< marked, and a plan says how its products and look-ups lie
};

/// Calls of collectives on each axis, forward and backward: the same on every rank.
inline std::string calls_of(const oslo::Mesh& mesh) {
  std::string text;
  for (int axis = 0; axis < mesh.axes(); ++axis) {
    for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter"}) {
      const int64_t calls = mesh.axis(axis)->ledger().total(kind).calls;
      if (calls > 0) text += c10::str("axis ", axis, ": ", calls, " ", kind, "; ");
    }
  }
  return text;
}

/// A copy or cast of a parameter is one in turn, with the sizes of its part, and takes gradients of
/// that; what is made of it takes those of the whole.
inline Tensors with_global_sizes(Tensors results, const Tensors& expected) {
  for (size_t i = 0; i < results.size() && i < expected.size(); ++i) {
    if (results[i].sizes() != expected[i].sizes()) results[i] = results[i] * 1;
  }
  return results;
}

/// The example's operator with one operand cut by `placements`, compared with one device: results,
/// what was written, gradients. Parameters are written without a gradient, as one has to,
/// and keep their shape.
inline void expect_one_devices(const Prepared& op, const Expected& expected, const Cutting& cutting,
                               const oslo::MeshPtr& mesh,
                               const std::vector<oslo::Placement>& placements, Given how,
                               const oslo::AxisUse& use = {}) {
  const Check check = op.example->check;
  const size_t cut = cutting.operand;
  const bool marked = how != Given::placed, written = marked && op.in_place && cut == 0;
  Tensors leaves;
  for (const at::Tensor& operand : op.operands) {
    leaves.push_back(operand.detach().clone().set_requires_grad(operand.requires_grad()));
  }
  if (marked) {
    const auto layout = std::make_shared<oslo::Layout>(
        oslo::make_layout(mesh, placements, op.operands[cut].sizes()));
    oslo::mark_parameter(leaves[cut], layout, "w");
    if (how == Given::planned) {
      const c10::SmallVector<oslo::AxisUse, 2> uses(mesh->axes(), use);
      oslo::set_weight_uses(leaves[cut], std::make_shared<oslo::WeightUses>(
                                             oslo::WeightUses{"w, planned by hand,", uses, uses}));
    }
  }
  const c10::AutoGradMode record(!written);
  Tensors operands = written ? leaves : given(op, leaves);
  if (!marked) operands[cut] = oslo::distribute(operands[cut], mesh, placements);
  Stack returned;
  try {
    returned = op.call(operands);
  } catch (const oslo::Error&) {
    const bool reshapes = written && op.handle.hasTag(at::Tag::inplace_view);
    if (check != Check::refused && !reshapes) throw;
    return;
  }
  OSLO_CHECK(check != Check::refused, "was not refused");
  const Tensors results = tensors_of(returned);
  const bool backward = expected.backward && !written;
  if (backward && !expected.second.empty()) {
    Tensors second = second_gradients(with_global_sizes(results, expected.results), leaves);
    second.resize(expected.second.size());  // none: nothing records, though LibTorch's own does
    for (size_t i = 0; i < second.size(); ++i) {
      at::Tensor& own = second[i];
      const at::Tensor& whole = expected.second[i];
      if (!own.defined() && !whole.defined()) continue;
      // Undefined or zeros: which, depends on how many steps the operator has.
      if (!own.defined()) own = at::zeros_like(whole);
      expect_same(own, whole.defined() ? whole : at::zeros_like(own), check,
                  c10::str("second derivative ", i));
    }
  }
  if (backward) go_backward(with_global_sizes(results, expected.results));
  expect_values(returned, operands, expected, check);
  for (size_t i = 0; backward && i < leaves.size(); ++i) {
    OSLO_CHECK(leaves[i].is_leaf(), op.operand_names[i], " is no leaf any more");
    at::Tensor gradient = expected.gradients[i];
    if (!gradient.defined()) gradient = at::zeros_like(op.operands[i].detach());
    const at::Tensor own =
        leaves[i].grad().defined() ? oslo::full_tensor(leaves[i].grad()) : at::zeros_like(gradient);
    expect_same(own, gradient, check, "the gradient of " + op.operand_names[i]);
  }
}

}  // namespace operator_examples
