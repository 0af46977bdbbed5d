#pragma once

#include <cmath>
#include <limits>

#include "mpu/base/error.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/placement/carrier/access.h"
#include "tests/support/operator_call.h"

// Operators in half precision, on numbers that it is short of: what ranks make of them together
// against one device, and against the same in double.
namespace operator_examples {

enum class Numbers {
  usual,
  large,       ///< whose powers leave the range
  small,       ///< whose powers vanish
  cancelling,  ///< of which the ranks' parts are large, or beyond the range, and the whole is not
  shifted,     ///< far from zero, beside what they differ by
  scaled       ///< products beyond the range, by factors that bring them back
};
constexpr std::array<const char*, 6> kNumberNames{"usual",      "large",   "small",
                                                  "cancelling", "shifted", "scaled"};

/// One operator, one cut and one kind of numbers, with what one device makes of them.
struct HalfCase {
  const Prepared* op;
  Cutting cutting;
  Stack arguments;  ///< as the example's, but for factors
  Tensors operands;
  bool product;  ///< what is added up are products, which are rounded before
  Expected one_device, exact;
  /// Of a product: the sum of what it adds up, each without its sign. A rank's part of it is less.
  Tensors bound, gradient_bound;
  Numbers kind;
  std::string text;

  /// Gradients of products are products again, and those of operands that all ranks use are added
  /// up as DDP's are: parts that cancel are rounded before.
  bool judges_gradient_of(size_t operand) const {
    if (!one_device.backward) return false;
    return kind != Numbers::cancelling || (!product && operand == cutting.operand);
  }

  /// Roundings of a result's size that ranks may add.
  double roundings = 2;
  /// A recurrent cell: products go into curves, so that no element's own size bounds what a
  /// rounding of them comes to; the largest one's does.
  bool cell = false;
};

inline bool is_number(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble;
}

/// The numbers of one operand in double. `dim`: along which it is cut; -1: it is whole.
inline at::Tensor numbers_like(const at::Tensor& given, Numbers kind, int64_t dim, bool product) {
  const at::Tensor usual = given.detach();
  switch (kind) {
    case Numbers::usual:
      return usual.clone();
    case Numbers::large:
      return usual * 64;
    case Numbers::small:
      return usual * 1e-3;
    case Numbers::shifted:
      return usual + 100;
    case Numbers::scaled:
      return usual * 200;
    case Numbers::cancelling:
      break;
  }
  if (dim < 0) return usual * 0.01 + 1;
  // As tensor_split cuts over two ranks. Parts of products are numbers of the type, so that they
  // have to be in its range.
  const int64_t size = usual.size(dim), first = (size + 1) / 2, second = size - first;
  const double each = product ? 2000 : 20000;
  at::Tensor numbers = usual.clone();
  numbers.narrow(dim, 0, first).add_(each);
  numbers.narrow(dim, first, second).sub_(each * static_cast<double>(first) / second);
  return numbers;
}

/// The result, what was written, and gradients; `with` in place of the operands.
inline Expected outcome_of(const HalfCase& test, const Tensors& with) {
  Prepared op = *test.op;
  op.stack = test.arguments;
  op.operands = with;
  return on_one_device(op);
}

inline Tensors in_type(const Tensors& tensors, const Tensors& like, at::ScalarType type) {
  Tensors converted;
  for (size_t i = 0; i < tensors.size(); ++i) {
    converted.push_back(
        is_number(like[i]) ? tensors[i].detach().to(type).set_requires_grad(like[i].requires_grad())
                           : tensors[i]);
  }
  return converted;
}

inline void bound_by_magnitudes(HalfCase& test, const Tensors& magnitudes) {
  Prepared op = *test.op;
  op.stack = test.arguments;
  Tensors leaves, from, gradients;
  for (size_t i = 0; i < magnitudes.size(); ++i) {
    leaves.push_back(magnitudes[i].clone().set_requires_grad(op.operands[i].requires_grad()));
  }
  test.bound = tensors_of(op.call(given(op, leaves)));
  for (at::Tensor& result : test.bound) {
    if (result.requires_grad()) {
      from.push_back(result);
      gradients.push_back(upstream_of(result).abs());
    }
    result = result.detach();
  }
  if (!from.empty()) torch::autograd::backward(from, gradients);
  for (const at::Tensor& leaf : leaves) test.gradient_bound.push_back(leaf.grad());
}

/// None where one device refuses the numbers, or the type.
inline std::optional<HalfCase> half_case(const Prepared& op, const Cutting& cutting, Numbers kind,
                                         at::ScalarType type, bool product) {
  HalfCase test{&op, cutting, op.stack, {}, product, {}, {}, {}, {}, kind, {}};
  test.text = c10::str(op.name, ", ", op.operand_names[cutting.operand], " cut on ", cutting.dim,
                       ", ", kNumberNames[static_cast<int>(kind)], " numbers in ", type);
  bool factors = false;
  const auto& schema = op.handle.schema().arguments();
  for (size_t i = 0; kind == Numbers::scaled && i < schema.size(); ++i) {
    if (schema[i].name() == "alpha") test.arguments[i] = 0.02;
    if (schema[i].name() == "beta") test.arguments[i] = 0.5;
    factors |= schema[i].name() == "alpha";
  }
  if (kind == Numbers::scaled && !factors) return {};
  Tensors numbers;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const at::Tensor& given = op.operands[i];
    numbers.push_back(
        is_number(given)
            ? numbers_like(given, kind, i == cutting.operand ? cutting.dim : -1, product)
            : given.detach());
  }
  test.operands = in_type(numbers, op.operands, type);
  const Tensors exact = in_type(test.operands, op.operands, at::kDouble);
  Tensors magnitudes;
  for (const at::Tensor& tensor : exact) {
    const bool number = tensor.scalar_type() == at::kDouble;
    magnitudes.push_back(number ? tensor.detach().abs() : tensor);
  }
  try {
    test.one_device = outcome_of(test, test.operands);
    test.exact = outcome_of(test, exact);
    if (product) bound_by_magnitudes(test, magnitudes);
  } catch (const std::exception&) {
    return {};
  }
  return test;
}

/// How far `actual` is off, in what is allowed: twice as far from the truth as one device is, and
/// `roundings` of `scale`. What one device cannot say is not judged, nor what a rank's part of
/// might not.
inline double excess(const at::Tensor& actual, const at::Tensor& one_device,
                     const at::Tensor& exact, const at::Tensor& scale, double roundings) {
  const auto wide = [](const at::Tensor& tensor) { return tensor.detach().to(at::kDouble); };
  const bool half = one_device.scalar_type() == at::kHalf;
  const double epsilon = half ? 0x1p-11 : 0x1p-8, least = half ? 0x1p-22 : 0;
  constexpr double kMostOfHalf = 65504;
  at::Tensor judged = at::logical_and(wide(one_device).isfinite(), wide(exact).isfinite());
  if (half) judged = at::logical_and(judged, wide(scale).abs().lt(kMostOfHalf));
  const at::Tensor allowed = (wide(one_device) - wide(exact)).abs() * 2 +
                             wide(scale).abs() * (roundings * epsilon) + least;
  const at::Tensor off = (wide(actual) - wide(exact)).abs();
  const at::Tensor ratio = at::where(off.le(allowed), at::zeros_like(off), off / allowed)
                               .nan_to_num(std::numeric_limits<double>::infinity())
                               .masked_fill(judged.logical_not(), 0);
  return ratio.numel() == 0 ? 0 : ratio.max().item<double>();
}

/// What is wrong with `actual`; empty: nothing.
inline std::string half_fault(const at::Tensor& actual, const at::Tensor& one_device,
                              const at::Tensor& exact, const at::Tensor& scale, double roundings,
                              const std::string& what) {
  if (actual.scalar_type() != one_device.scalar_type()) {
    return c10::str(what, " is ", actual.scalar_type(), ", not ", one_device.scalar_type());
  }
  if (!at::isReducedFloatingType(one_device.scalar_type())) return "";
  const double times = excess(actual, one_device, exact, scale, roundings);
  if (times <= 1) return "";
  return c10::str(what, " is off by ", times, " times what is allowed:\n", actual,
                  "\none device has\n", one_device, "\nin double\n", exact);
}

/// The case on ranks: all that is wrong with it.
inline std::string half_faults(const HalfCase& test, const oslo::MeshPtr& mesh) {
  constexpr double kOfGradient = 32;
  const Prepared& op = *test.op;
  const size_t cut = test.cutting.operand;
  const std::vector<oslo::Placement> placements{oslo::Placement::shard(test.cutting.dim)};
  Tensors leaves;
  for (const at::Tensor& operand : test.operands) {
    leaves.push_back(operand.detach().clone().set_requires_grad(operand.requires_grad()));
  }
  Tensors operands = given(op, leaves);
  operands[cut] = oslo::distribute(operands[cut], mesh, placements);
  Prepared changed = op;
  changed.stack = test.arguments;
  const Tensors results = tensors_of(changed.call(operands));
  if (test.one_device.backward) go_backward(results);
  std::string faults;
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor full = oslo::full_tensor(results[i]).detach();
    const at::Tensor& exact = test.exact.results[i];
    at::Tensor scale = test.bound.empty() ? exact : test.bound[i];
    if (test.cell) scale = exact.abs().max().expand_as(exact);
    faults += half_fault(full, test.one_device.results[i], exact, scale, test.roundings,
                         c10::str("result ", i));
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!test.judges_gradient_of(i)) continue;
    const at::Tensor &expected = test.one_device.gradients[i], &exact = test.exact.gradients[i];
    if (!expected.defined() || !exact.defined() || exact.numel() == 0) continue;
    const at::Tensor own = leaves[i].grad().defined() ? leaves[i].grad() : at::zeros_like(expected);
    at::Tensor scale = exact.nan_to_num(0, 0, 0).abs().max().expand_as(exact);
    if (test.product) scale = at::maximum(scale, test.gradient_bound[i].abs());
    faults += half_fault(own, expected, exact, scale, kOfGradient,
                         "the gradient of " + op.operand_names[i]);
  }
  return faults;
}

}  // namespace operator_examples
