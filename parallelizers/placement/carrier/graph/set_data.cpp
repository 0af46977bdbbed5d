#include "parallelizers/placement/carrier/graph/set_data.h"

#include <c10/core/GradMode.h>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {

std::optional<at::Tensor> data_to_take(const at::Tensor& target, const at::Tensor& data) {
  if (!target.defined() || !data.defined()) return data;
  const bool placed = placed_impl(data) != nullptr;
  const Mark* mark = placed_impl(target) != nullptr ? nullptr : mark_of(target);
  const bool resident = mark != nullptr && mark->layout->resident();
  if (!placed && !resident) return data;
  const bool here = mark == nullptr || mark->layout->here();
  if (!here) mark->layout->context()->check_not_ended();
  // Values of other stages go where the model goes: `Module::to` hands every parameter its new
  // data.
  if (resident && !placed && !data.is_meta()) {
    mark->layout->context()->residence()->move_to(data.device());
  }
  const c10::AutoGradMode no_grad(false);
  if (mark == nullptr) {
    OSLO_CHECK(!layout(data)->resident(),
               "set_data of a tensor that is neither a parameter nor a buffer of the model by what "
               "some pipeline stages hold, or the example of initialize computed, which is a shape "
               "elsewhere; assign the tensor instead");
    return full_tensor(data.detach());
  }
  const auto sizes = mark->layout->global_sizes(target.sizes());
  const auto given = value_of(data).sizes();
  OSLO_CHECK(sizes == given, "set_data of parallel parameter ", mark->name, ", whose shape is ",
             c10::IntArrayRef(sizes), ", by a tensor of shape ", c10::IntArrayRef(given),
             ": a parameter that is cut over ranks keeps its shape");
  const bool marked = !placed && mark_of(data) != nullptr;
  OSLO_CHECK(placed || marked || mark->layout->whole(),
             "set_data of a parameter that is cut with an ordinary tensor");
  if (!here) {
    if (!target.is_inference()) target.unsafeGetTensorImpl()->bump_version();  // as it is a write
    return marked ? std::optional(data) : std::nullopt;
  }
  return marked ? data : marked_like(local_in(data.detach(), mark->layout), target);
}

}  // namespace oslo
