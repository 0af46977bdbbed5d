#include "parallelizers/placement/rules/matrix/linear/kept_operand.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/group/group.h"
#include "parallelizers/placement/operators/planned_results.h"

namespace oslo {
namespace {

/// The axes that cut `from` and not `to`, inner ones first; none where they differ in more.
std::optional<Axes> gathered_axes(const LayoutPtr& from, const LayoutPtr& to) {
  if (!from) return std::nullopt;
  Axes axes;
  for (const int axis : from->nesting()) {
    const Layout::AxisCut& before = (*from)[axis];
    const Layout::AxisCut after = to ? (*to)[axis] : Layout::AxisCut();
    if (before == after) continue;
    if (!after.whole()) return std::nullopt;
    axes.push_back(axis);
  }
  std::reverse(axes.begin(), axes.end());
  if (axes.empty()) return std::nullopt;
  return axes;
}

}  // namespace

at::Tensor GatheredAgain::gather(const at::Tensor& kept) const {
  const AskerScope as_forward(asker);
  const AskerScope of_gradient = AskerScope::of_gradient();
  const c10::AutoGradMode no_grad(false);
  Value value{kept, from, {}, strides};
  const std::optional<Axes> axes = gathered_axes(from, to);
  for (const int axis : *axes) value = gather_axis(std::move(value), axis);
  return std::move(value.local);
}

PartsOfProduct::PartsOfProduct(std::span<Value> operands) {
  const int weight = planned_weight(operands);
  if (weight < 0 || !operands[weight].use.gathers_again || !operands[weight].layout) return;
  cut_inputs(operands, operands[weight].layout->context(), weight);
  before_.append(operands.begin(), operands.end());
}

std::optional<GatheredAgain> PartsOfProduct::again(size_t i, const Value& after) const {
  if (!wanted() || !gathered_axes(before_[i].layout, after.layout)) return std::nullopt;
  return GatheredAgain{before_[i].local, before_[i].layout, after.layout, before_[i].strides,
                       AskerScope::current()};
}

void PartsOfProduct::foresee(std::span<const Value> after) const {
  if (!wanted() || !c10::GradMode::is_enabled()) return;
  for (size_t i = 0; i < before_.size(); ++i) {
    const auto own = again(i, after[i]);
    // One operand is needed for the gradient of the other.
    if (!own || !after[1 - i].local.requires_grad()) continue;
    const Mesh& mesh = own->from->mesh();
    if (mesh.axis(gathered_axes(own->from, own->to)->front())->foresees_backward()) {
      own->gather(own->part);
    }
  }
}

KeptOperand::KeptOperand(const at::Tensor& operand, std::optional<GatheredAgain> again)
    : saved_(again ? again->part : operand, /*is_output=*/false), again_(std::move(again)) {
  if (again_) again_->part.reset();  // kept above
}

at::Tensor KeptOperand::unpack(const NodePtr& node) const {
  at::Tensor kept = saved_.unpack(node);
  if (!again_) return kept;
  OSLO_CHECK(!c10::GradMode::is_enabled(),
             "create_graph through a layer that gathers its operands again in backward, which "
             "would lose part of the second derivative; make it with "
             "LinearOptions().keep_gathered(true), or set \"keep_gathered\": true beside the mode "
             "in the config");
  return again_->gather(kept);
}

void KeptOperand::leave_graph(const NodePtr& node) {
  saved_ = torch::autograd::SavedVariable(saved_.unpack(node).detach(), /*is_output=*/false);
}

void KeptOperand::reset() {
  saved_.reset_data();
}

}  // namespace oslo
