#include "oslo_cpp/initialize/checks/check_devices.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "mpu/base/error.h"

namespace oslo {

void check_devices(const std::vector<NamedDevice>& parameters, c10::Device current) {
  const NamedDevice* first = nullptr;
  for (const NamedDevice& each : parameters) {
    const auto& [name, device] = each;
    if (device.is_meta()) continue;
    if (first == nullptr) first = &each;
    OSLO_CHECK(device == first->second, "initialize: ", name, " is on ", device, " and ",
               first->first, " on ", first->second, "; move the whole model to one device: ",
               "model->to(oslo::local_device(world, \"cuda\"))");
  }
  if (first == nullptr || first->second.is_cpu()) return;
  OSLO_CHECK(first->second == current, "initialize: the model is on ", first->second,
             " and this rank's device is ", current,
             "; call oslo::local_device(world, \"cuda\") first and move the model there");
}

void check_devices(const ModelView& model) {
  std::vector<NamedDevice> parameters;
  c10::Device current(c10::kCPU);
  for (const ParameterView& each : model.parameters()) {
    const c10::Device device = each.registered.device();
    parameters.emplace_back(each.path, device);
    if (device.is_cpu() || device.is_meta()) continue;
    current = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  check_devices(parameters, current);
}

}  // namespace oslo
