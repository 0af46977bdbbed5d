#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "oslo_cpp/config/config_values.h"
#include "parallelizers/memory/offload/offload_scope.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/operators/call_observer.h"

namespace oslo {

/// Whether the config's 'activation_checkpoint' asks for anything. Then all parameters are marked.
bool saves_memory(const ConfigValues& values);
/// Throws where the model does not have what it names.
void check_saves_memory(const ModelView& model, const ConfigValues& values);

/// What 'activation_checkpoint.offload' moves.
OffloadOptions offload_options(const ConfigValues& values);

/// What computes activations again, or moves them to the host, while the model runs; null where
/// the config asks for neither.
std::shared_ptr<CallObserver> memory_observer(const ModelView& model, const ConfigValues& values,
                                              int64_t memory_limit, c10::Device device);

/// What rank 0 says where what is asked for does nothing on this device; empty elsewhere.
std::string saves_nothing(const ConfigValues& values, c10::Device device);

}  // namespace oslo
