// A marked tensor's value goes into a forward here, and its gradient comes back.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string>
#include <utility>

#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/carrier/split_backward.h"
#include "parallelizers/placement/carrier/stayed_behind.h"

namespace oslo {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

/// Marks what autograd::grad hands out.
class MarkCaptured final : public torch::autograd::GraphTask::ExecInfo::Capture::GradCaptureHook {
 public:
  /// `whole`: gradients are those of the whole parameter, not of this rank's part.
  MarkCaptured(at::Tensor parameter, bool whole)
      : parameter_(std::move(parameter)), whole_(whole) {}

  at::Tensor operator()(const at::Tensor& gradient) override {
    const bool marked_already = gradient.defined() && gradient.key_set().has(kPlacedKey) &&
                                placed_impl(gradient) == nullptr;
    if (!gradient.defined() || marked_already) return gradient;
    const at::Tensor local = whole_ ? local_in(gradient, mark_of(parameter_)->layout) : gradient;
    at::Tensor marked = marked_like(local, parameter_);
    if (local.grad_fn()) {
      torch::autograd::impl::set_gradient_edge(marked, torch::autograd::impl::gradient_edge(local));
    }
    return marked;
  }

 private:
  at::Tensor parameter_;
  bool whole_;
};

/// In autograd::grad(.., {parameter}), where nothing is accumulated into `.grad`.
void mark_when_captured(Node* accumulate, const at::Tensor& parameter) {
  const auto* tasks = torch::autograd::get_current_graph_task_exec_info();
  if (tasks == nullptr) return;
  const auto found = tasks->find(accumulate);
  if (found == tasks->end() || !found->second.captures_) return;
  for (auto& capture : *found->second.captures_) {
    if (!capture.DO_NOT_USE_DEPRECATED_get_capture_hooks().empty()) continue;
    capture.DO_NOT_USE_DEPRECATED_register_capture_hook(
        std::make_unique<MarkCaptured>(parameter, takes_whole_gradients(*accumulate)));
  }
}

/// Hands the gradient of a parameter's value on to where the parameter's gradients arrive. In a
/// backward pass of two halves that is in the second: a parameter then gets one gradient.
class UnmarkNode final : public WeightHalfNode {
 public:
  UnmarkNode(const at::Tensor& parameter, LayoutPtr layout)
      : parameter_(parameter.getIntrusivePtr()), layout_(std::move(layout)) {}

  std::string name() const override { return "OsloUnmark"; }

  variable_list backward(at::Tensor gradient) override {
    Node& arrives = *next_edge(0).function;
    if (auto impl = parameter_.lock()) {
      mark_when_captured(&arrives, at::Tensor(std::move(impl)));
    }
    if (takes_whole_gradients(arrives)) return {wrap({std::move(gradient), layout_})};
    mark_gradient_after_backward(parameter_);
    return {std::move(gradient)};
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl> parameter_;
  LayoutPtr layout_;
};

/// Whether the gradient of a parameter that no rank holds is a shape: in the planner's runs.
bool imagines_gradient(const at::Tensor& tensor, const Mark& mark) {
  return mark.layout->context()->imagined() != nullptr && c10::GradMode::is_enabled() &&
         tensor.requires_grad() && tensor.is_leaf() && mark.accumulator &&
         accumulates_for(*mark.accumulator, tensor);
}

}  // namespace

void keep_accumulator(const at::Tensor& tensor, const Mark& mark) {
  if (!mark.accumulator || torch::autograd::impl::try_get_grad_accumulator(tensor)) return;
  if (!tensor.is_leaf() || !accumulates_for(*mark.accumulator, tensor)) return;
  mark.accumulator = make_accumulator(tensor, mark.layout, &set_gradient_mark, mark.sharded);
  torch::autograd::impl::set_grad_accumulator(tensor, WeakNodePtr(mark.accumulator));
}

Value value_of_marked(const at::Tensor& tensor, const Mark& mark) {
  if (!mark.accumulator) check_not_left_behind(*tensor.unsafeGetTensorImpl());
  at::Tensor local = unmarked_alias(tensor);
  if (!mark.layout->here() && !imagines_gradient(tensor, mark)) {
    mark.layout->context()->check_not_ended();
    // No graph reaches the parameter: backward runs where it is.
    local.set_requires_grad(c10::GradMode::is_enabled() && tensor.requires_grad());
    // What is no parameter may be written where its gradient is recorded, which a leaf may not.
    const bool parameter = mark.accumulator && accumulates_for(*mark.accumulator, tensor);
    const bool writable = !parameter && local.requires_grad();
    return {writable ? local.clone() : local, mark.layout};
  }
  if (c10::GradMode::is_enabled() && tensor.requires_grad()) {
    keep_accumulator(tensor, mark);
    const auto node = make_node<UnmarkNode>(tensor, mark.layout);
    node->add_next_edge(torch::autograd::impl::gradient_edge(tensor));
    // A tensor that a stage's value was written into has a history, which the input half goes on
    // through.
    if (const auto& split = SplitBackward::current(); split && tensor.is_leaf()) {
      node->belong_to(split);
    }
    torch::autograd::set_history(local, node);
  }
  return {std::move(local), mark.layout};
}

}  // namespace oslo
