#pragma once

#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Calls `visit(tensor, path)` for what a model registers and computes with; one tensor may come
/// several times.
template <typename Visit>
void for_each_tensor_of(const ModelView& model, const Visit& visit) {
  for (const ParameterView& parameter : model.parameters()) {
    visit(parameter.registered, parameter.path);
    if (parameter.member != nullptr) visit(*parameter.member, parameter.path);
  }
  for (const ModuleView& module : model.modules()) {
    if (module.layer) visit(module.layer->weight.in_use(), module.path);
    if (module.layer) visit(module.layer->bias.in_use(), module.path);
  }
  for (const BufferView& buffer : model.buffers()) visit(buffer.tensor, buffer.path);
}

}  // namespace oslo
