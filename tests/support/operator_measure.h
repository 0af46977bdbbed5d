#pragma once

#include <cmath>

#include "mpu/base/error.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/placement/carrier/access.h"
#include "tests/support/operator_call.h"

// Runs one operator with one operand cut, compares with one device, and says what was moved.
namespace operator_examples {

/// What one cut of one operand comes to.
struct Outcome {
  Cutting cutting;
  int64_t result = -1;  ///< the dimension in which the first result is cut; -1: whole
  bool in_blocks = false;
  bool no_tensor = false, refused = false;
  std::string forward, backward;
  std::vector<std::string> reasons;  ///< for what was gathered
  bool gathered_only = false;        ///< the cut operand was gathered, and nothing else moved
};

inline void expect_same(const at::Tensor& actual, const at::Tensor& expected, Check check,
                        const std::string& what) {
  if (number_type() != at::kDouble) return;
  OSLO_CHECK(actual.sizes() == expected.sizes(), what, " has shape ", actual.sizes(), ", not ",
             expected.sizes());
  OSLO_CHECK(actual.scalar_type() == expected.scalar_type(), what, " is ", actual.scalar_type(),
             ", not ", expected.scalar_type());
  if (check == Check::shapes) return;
  const double tolerance = expected.scalar_type() == at::kFloat ? 1e-5 : 1e-9;
  OSLO_CHECK(at::allclose(actual, expected, tolerance, tolerance, /*equal_nan=*/true), what,
             " differs:\n", actual, "\n", expected);
}

/// What the ledger holds, in words; names what was moved where its size tells.
class Moved {
 public:
  Moved(const Prepared& op, const Expected& expected, size_t cut_operand, double rest)
      : op_(op), expected_(expected), cut_(cut_operand), rest_(rest) {}

  std::string forward(const oslo::Ledger& ledger) const {
    const oslo::Traffic sums = ledger.total("all_reduce"), parts = ledger.total("all_gather");
    const bool result =
        std::any_of(expected_.results.begin(), expected_.results.end(),
                    [&](const at::Tensor& t) { return t.numel() == sums.elements; });
    return join(
        text_of(sums, "all-reduce", sums.calls == 1 && result ? "the result" : ""),
        text_of(parts, "all-gather", gathers_itself(parts) ? name(cut_) : parts_of_result(parts)));
  }

  std::string backward(const oslo::Ledger& ledger) const {
    const oslo::Traffic sums = ledger.total("all_reduce"), parts = ledger.total("all_gather"),
                        both = ledger.total("reduce_scatter");
    const auto all = [&](size_t i) { return op_.operands[i].numel(); };
    const auto others = [&](size_t i) { return elsewhere(i); };
    const auto sets = sets_of(others, 0, parts.calls, parts.elements);
    const std::string joined = sets.empty() ? parts_of_result(parts) : only_of(sets);
    const int64_t own = op_.operands[cut_].numel() - elsewhere(cut_);
    const bool itself = both.calls == 1 && both.elements == own;
    return join(
        join(text_of(sums, "all-reduce", only_of(sets_of(all, 0, sums.calls, sums.elements))),
             text_of(parts, "all-gather", joined)),
        text_of(both, "reduce-scatter", itself ? name(cut_) : ""));
  }

  /// Nothing but the cut operand was joined.
  bool gathers_itself(const oslo::Traffic& parts) const {
    return parts.calls == 1 && parts.elements == elsewhere(cut_);
  }

 private:
  /// "the result" where that was joined.
  std::string parts_of_result(const oslo::Traffic& parts) const {
    if (parts.calls != 1 || expected_.results.empty()) return "";
    const auto numbers = static_cast<double>(expected_.results[0].numel());
    return std::llround(numbers * rest_) == parts.elements ? "the result" : "";
  }

  std::string name(size_t operand) const { return "`" + op_.operand_names[operand] + "`"; }

  /// Elements of an operand that lie on the other rank, cut as the cut operand is.
  int64_t elsewhere(size_t operand) const {
    return std::llround(static_cast<double>(op_.operands[operand].numel()) * rest_);
  }

  /// Sets of `calls` whole operands with gradients, of which `elements` were moved in all.
  template <typename Size>
  std::vector<std::string> sets_of(const Size& size, size_t first, int64_t calls,
                                   int64_t elements) const {
    std::vector<std::string> sets;
    for (size_t i = first; calls > 0 && i < op_.operands.size(); ++i) {
      if (i == cut_ || !op_.operands[i].requires_grad()) continue;
      if (calls == 1 && elements == size(i)) sets.push_back(name(i));
      for (const auto& more : sets_of(size, i + 1, calls - 1, elements - size(i))) {
        sets.push_back(name(i) + ", " + more);
      }
    }
    return sets;
  }

  /// Where several can have been moved, none is named.
  static std::string only_of(const std::vector<std::string>& sets) {
    return sets.size() == 1 ? sets[0] : "";
  }

  static std::string join(const std::string& left, const std::string& right) {
    return left.empty() || right.empty() ? left + right : left + "; " + right;
  }

  static std::string text_of(const oslo::Traffic& traffic, const std::string& operation,
                             const std::string& what) {
    if (traffic.elements == 0) return "";
    std::string text = operation;
    if (traffic.calls > 1) text = c10::str(traffic.calls, " ", operation, "s");
    if (!what.empty()) return text + " of " + what;
    return c10::str(text, " of ", traffic.elements, traffic.elements == 1 ? " number" : " numbers");
  }

  const Prepared& op_;
  const Expected& expected_;
  size_t cut_;
  double rest_;
};

/// What the operator returned, and what its operands are afterwards, against one device.
inline void expect_values(const Stack& returned, const Tensors& operands, const Expected& expected,
                          Check check) {
  const Tensors results = tensors_of(returned);
  OSLO_CHECK(plain_text(returned) == expected.plain, "returned ", plain_text(returned));
  OSLO_CHECK(results.size() == expected.results.size(), "returned ", results.size(), " tensors");
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor full = oslo::full_tensor(results[i]).detach();
    expect_same(full, expected.results[i], check, c10::str("result ", i));
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    const at::Tensor full = oslo::full_tensor(operands[i]).detach();
    expect_same(full, expected.operands[i], check, c10::str("operand ", i, " afterwards"));
  }
}

inline Outcome with_cut(const Prepared& op, const Expected& expected, const Cutting& cutting,
                        const oslo::MeshPtr& mesh) {
  const Check check = op.example->check;
  auto& ledger = mesh->axis(0)->ledger();
  const at::Tensor whole = op.operands[cutting.operand].detach();
  const std::vector<oslo::Placement> placements{
      oslo::Placement::shard(cutting.dim, cutting.blocks, cutting.unit)};
  const oslo::Layout layout = oslo::make_layout(mesh, placements, whole.sizes());
  Tensors leaves;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const at::Tensor all = op.operands[i].detach();
    leaves.push_back((i == cutting.operand ? oslo::local_part(all, layout) : all).clone());
    leaves.back().set_requires_grad(op.operands[i].requires_grad());
  }
  Tensors operands = given(op, leaves);
  operands[cutting.operand] =
      oslo::from_local(operands[cutting.operand], mesh, placements, whole.sizes());
  const oslo::Cut& cut = *layout[0].cut;
  const Moved moved(op, expected, cutting.operand,
                    1.0 - static_cast<double>(cut.local_size(mesh->axis(0)->rank())) /
                              static_cast<double>(cut.size()));
  Outcome outcome;
  outcome.cutting = cutting;
  ledger.clear();
  context_of(mesh)->gathers().clear();
  Stack returned;
  try {
    returned = op.call(operands);
  } catch (const oslo::Error&) {
    if (check != Check::refused) throw;
    outcome.refused = true;
    return outcome;
  }
  OSLO_CHECK(check != Check::refused, "was not refused");
  const Tensors results = tensors_of(returned);
  outcome.forward = moved.forward(ledger);
  for (const auto& entry : context_of(mesh)->gathers().entries()) {
    outcome.reasons.push_back(entry.operation + ": " + entry.reason);
  }
  outcome.gathered_only = !outcome.reasons.empty() && ledger.total("all_reduce").calls == 0 &&
                          moved.gathers_itself(ledger.total("all_gather"));
  outcome.no_tensor = results.empty();
  if (const oslo::LayoutPtr lies = results.empty() ? nullptr : oslo::layout(results[0])) {
    outcome.result = (*lies)[0].dim;
    outcome.in_blocks = outcome.result >= 0 && !(*lies)[0].cut->contiguous();
  }
  ledger.clear();
  if (expected.backward) go_backward(results);
  outcome.backward = moved.backward(ledger);

  expect_values(returned, operands, expected, check);
  for (size_t i = 0; expected.backward && i < leaves.size(); ++i) {
    at::Tensor gradient = expected.gradients[i];
    if (!gradient.defined()) gradient = at::zeros_like(op.operands[i].detach());
    if (i == cutting.operand) gradient = oslo::local_part(gradient, layout);
    const at::Tensor own = leaves[i].grad().defined() ? leaves[i].grad() : at::zeros_like(gradient);
    expect_same(own, gradient, check, "the gradient of " + op.operand_names[i]);
  }
  return outcome;
}

/// Every dimension of every operand, and what the example adds.
inline std::vector<Cutting> cuttings_of(const Prepared& op) {
  std::vector<Cutting> cuttings;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    for (int64_t d = 0; d < op.operands[i].dim(); ++d) {
      if (op.operands[i].size(d) > 1) cuttings.push_back({i, d});
    }
  }
  cuttings.insert(cuttings.end(), op.example->cuttings.begin(), op.example->cuttings.end());
  return cuttings;
}

}  // namespace operator_examples
