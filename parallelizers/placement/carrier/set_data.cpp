#include "parallelizers/placement/carrier/set_data.h"

#include <c10/core/GradMode.h>

#include "mpu/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/engine/dry_call.h"

namespace oslo {

std::optional<at::Tensor> data_to_take(const at::Tensor& target, const at::Tensor& data) {
  if (!target.defined() || !data.defined()) return data;
  const bool placed = placed_impl(data) != nullptr;
  const Mark* mark = placed_impl(target) != nullptr ? nullptr : mark_of(target);
  const bool dry = mark != nullptr && mark->layout->mesh()->dry != nullptr;
  if (!placed && !dry) return data;
  if (dry) refuse_kept(*mark->layout->mesh()->dry);
  const c10::AutoGradMode no_grad(false);
  if (mark == nullptr) {
    OSLO_CHECK(!is_dry(value_of(data)),
               "set_data of a tensor that is neither a parameter nor a buffer of the model by what "
               "the example computed, which is a shape; assign the tensor instead");
    return full_tensor(data.detach());
  }
  const auto sizes = mark->layout->global_sizes(target.sizes());
  const auto given = value_of(data).sizes();
  OSLO_CHECK(sizes == given, "set_data of parallel parameter ", mark->name, ", whose shape is ",
             c10::IntArrayRef(sizes), ", by a tensor of shape ", c10::IntArrayRef(given),
             ": a parameter that is cut over ranks keeps its shape");
  OSLO_CHECK(!dry || placed || mark_of(data) != nullptr || mark->layout->whole(),
             "set_data of a parameter that is cut with an ordinary tensor");
  if (dry) {
    if (!target.is_inference()) target.unsafeGetTensorImpl()->bump_version();  // as it is a write
    return std::nullopt;
  }
  return marked_like(local_in(data.detach(), mark->layout), target);
}

}  // namespace oslo
