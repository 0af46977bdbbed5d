#include "oslo_cpp/verify/same_precision.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <cmath>

#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/placement/door/autocast_state.h"

namespace oslo {
namespace {

class AutocastOn {
 public:
  AutocastOn(at::DeviceType device, at::ScalarType type)
      : device_(device),
        enabled_(at::autocast::is_autocast_enabled(device)),
        type_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_dtype(device_, type);
    at::autocast::set_autocast_enabled(device_, true);
  }
  ~AutocastOn() {
    at::autocast::set_autocast_enabled(device_, enabled_);
    at::autocast::set_autocast_dtype(device_, type_);
  }
  AutocastOn(const AutocastOn&) = delete;
  AutocastOn& operator=(const AutocastOn&) = delete;

 private:
  const at::DeviceType device_;
  const bool enabled_;
  const at::ScalarType type_;
  const NoCastCache uncached_;
};

}  // namespace

detail::RunModel run_as_with(const Precision& precision, at::DeviceType device,
                             const detail::RunModel& run) {
  if (!precision.autocast) return run;
  return [type = *precision.autocast, device, run](torch::nn::Module& model) {
    const AutocastOn on(device, type);
    return run(model);
  };
}

double tolerance_under(const Precision& precision) {
  if (!precision.autocast) return 0;
  return std::sqrt(*precision.autocast == at::kHalf ? 0x1p-10 : 0x1p-7);
}

at::Tensor as_rounded(const at::Tensor& own, const at::Tensor& like) {
  const at::ScalarType type = like.scalar_type();
  return is_half(type) && own.scalar_type() == at::kFloat ? own.to(type) : own;
}

}  // namespace oslo
