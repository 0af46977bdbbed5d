#include "oslo_cpp/config/precision_of.h"

#include <ATen/autocast_mode.h>

#include <string>

#include "mpu/base/error.h"
#include "mpu/transport/counted_process_group.h"

namespace oslo {
namespace {

c10::ScalarType type_of(const std::string& name) {
  if (name == "bfloat16") return c10::kBFloat16;
  return name == "float16" ? c10::kHalf : c10::kFloat;
}

}  // namespace

Precision precision_of(const ConfigValues& values) {
  Precision precision;
  if (values.amp) precision.autocast = type_of(values.amp_dtype);
  precision.master_weights = values.master_weights;
  precision.reduce = type_of(values.reduce_dtype);
  return precision;
}

void check_precision(const Precision& precision, c10::Device device) {
  OSLO_CHECK(!precision.autocast || at::autocast::is_autocast_available(device.type()),
             "initialize: 'amp.enabled' = true, and LibTorch has no autocast for ", device,
             ", which the model is on: move it to the CPU or to CUDA before initialize, or set "
             "'amp.enabled' to false");
}

void set_travel_type(Group& data, const Precision& precision) {
  auto* group = dynamic_cast<CountedProcessGroup*>(data.process_group().get());
  if (group == nullptr || precision.reduce == c10::kFloat) return;
  group->let_gradients_travel_in(precision.reduce);
}

}  // namespace oslo
