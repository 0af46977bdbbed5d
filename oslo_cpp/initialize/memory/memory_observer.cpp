#include "oslo_cpp/initialize/memory/memory_observer.h"

#include <vector>

#include "oslo_cpp/initialize/memory/recompute_layers.h"
#include "parallelizers/memory/offload/offload_layers.h"

namespace oslo {

bool saves_memory(const ConfigValues& values) {
  return values.activation_checkpoint || values.activation_offload;
}

void check_saves_memory(const ModelView& model, const ConfigValues& values) {
  if (values.activation_checkpoint) segments_of(model, values);
}

OffloadOptions offload_options(const ConfigValues& values) {
  OffloadOptions options;
  if (values.activation_ahead) options.ahead(*values.activation_ahead);
  return options;
}

std::shared_ptr<CallObserver> memory_observer(const ModelView& model, const ConfigValues& values,
                                              int64_t memory_limit, c10::Device device) {
  if (values.activation_checkpoint) return layer_segments(model, values, memory_limit, device);
  if (!values.activation_offload) return nullptr;
  std::vector<at::Tensor> parameters;
  for (const NamedTensor& parameter : model.in_use()) parameters.push_back(parameter.tensor);
  return std::make_shared<OffloadLayers>(parameters, offload_options(values));
}

std::string saves_nothing(const ConfigValues& values, c10::Device device) {
  if (!values.activation_offload || !device.is_cpu()) return {};
  return "oslo: 'activation_checkpoint.offload' does nothing while the model is on the CPU, whose "
         "memory it moves to; \"enabled\": true computes activations again";
}

}  // namespace oslo
