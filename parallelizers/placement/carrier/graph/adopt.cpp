#include "parallelizers/placement/carrier/graph/adopt.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <string>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

LayoutPtr layout_of(const at::Tensor& tensor) {
  if (const PlacedTensorImpl* impl = placed_impl(tensor)) return impl->layout();
  const Mark* mark = mark_of(tensor);
  return mark == nullptr ? nullptr : mark->layout;
}

/// Throws where what the target lives on is not what runs the operator.
void check_stages(const Layout& target, StageSet stages, const char* operation) {
  OSLO_CHECK(target.stages() == stages, operation, " on pipeline ", stages.to_string(),
             " writes into a tensor that lives on ", target.stages().to_string(),
             ", whose ranks would not see the write; use the operator that returns a new tensor (x "
             "= x + y in place of x += y)");
}

void forget_memory(const at::Tensor& tensor, StageSet stages, const char* operation) {
  tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      c10::str("this tensor's memory was written by ", operation, " on pipeline ",
               stages.to_string(),
               ", which this rank is not on; use the tensor that was written, or take the view "
               "after the write"));
}

/// It shares no memory with the parameter that it came of.
bool is_recorded_copy(const at::Tensor& marked) {
  if (!marked.requires_grad() || marked.is_leaf() || marked.is_view()) return false;
  const auto& history = marked.grad_fn();
  return history != nullptr && history->name() != "AliasBackward0";
}

}  // namespace

void adopt_target(const at::Tensor& target, const ContextPtr& context, StageSet stages,
                  const char* operation) {
  if (const LayoutPtr layout = layout_of(target)) return check_stages(*layout, stages, operation);
  const auto layout = std::make_shared<Layout>(context, stages);
  const std::string name = std::string("a tensor written by ") + operation;
  const BelowDoor below;
  const auto check = [&](const at::Tensor& tensor) {
    if (const LayoutPtr own = layout_of(tensor)) check_stages(*own, stages, operation);
    OSLO_CHECK(!tensor.requires_grad(), operation, " on pipeline ", stages.to_string(),
               " writes into an ordinary tensor that requires a gradient; use the operator that "
               "returns a new tensor");
  };
  const at::Tensor base = target.is_view() ? at::Tensor(target._base()) : at::Tensor();
  check(target);
  if (base.defined()) check(base);
  if (!layout->here() && target.has_storage()) forget_memory(target, stages, operation);
  if (base.defined() && !layout_of(base)) mark_in_place(base, layout, name);
  mark_in_place(target, layout, name);
}

bool is_adopted(const at::Tensor& marked) {
  const Mark* const mark = mark_of(marked);
  if (mark == nullptr) return false;
  if (!mark->accumulator && mark->layout->resident()) return true;
  return is_recorded_copy(marked);
}

}  // namespace oslo
