#include "checkpoint/state/model_state.h"

#include <unordered_map>

#include "mpu/base/error.h"
#include "parallelizers/deferred/fill.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

ModelState::ModelState(const ModelView& model) {
  std::unordered_map<const c10::TensorImpl*, size_t> known;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    check_filled(tensor, name, "a checkpoint");
    const auto [found, fresh] = known.emplace(tensor.unsafeGetTensorImpl(), tensors.size());
    names.emplace_back(name, found->second);
    if (!fresh) return;
    tensors.push_back(state_entry(name, tensor));
  };
  for (const ParameterView& parameter : model.parameters()) {
    add(parameter.path, parameter.in_use());
  }
  for (const BufferView& buffer : model.buffers()) add(buffer.path, buffer.tensor);
}

ModelState::Tensor state_entry(const std::string& name, const at::Tensor& tensor) {
  ModelState::Tensor entry{name, tensor, nullptr, nullptr, tensor.sizes().vec(), {}};
  const Mark* mark = mark_of(tensor);
  if (mark == nullptr) return entry;
  entry.stages = mark->layout->stages();
  entry.here = mark->layout->here();
  const auto& [own, _, state] = mark->layouts;
  if (!own->whole()) {
    entry.layout = own;
    const auto global = own->global_sizes(tensor.sizes());
    entry.shape.assign(global.begin(), global.end());
  }
  if (!state->whole()) entry.state_layout = state;
  return entry;
}

std::string ModelState::describe() const {
  std::string text;
  for (const auto& [name, number] : names) {
    const Tensor& tensor = tensors[number];
    text += c10::str(name, " = ", tensor.name, " ", tensor.local.scalar_type(), " ",
                     c10::IntArrayRef(tensor.shape));
    for (int axis = 0; tensor.layout && axis < tensor.layout->axes(); ++axis) {
      text += c10::str(" ", (*tensor.layout)[axis].dim);
    }
    text += "\n";
  }
  return text;
}

}  // namespace oslo
