#include "checkpoint/model_state.h"

#include <torch/nn/module.h>

#include <unordered_map>

#include "mpu/error.h"
#include "parallelizers/layers/parameters_in_use.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

ModelState::ModelState(const torch::nn::Module& module) {
  std::unordered_map<const c10::TensorImpl*, size_t> known;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto [found, fresh] = known.emplace(tensor.unsafeGetTensorImpl(), tensors.size());
    names.emplace_back(name, found->second);
    if (!fresh) return;
    Tensor entry{name, tensor, nullptr, tensor.sizes().vec()};
    const Mark* mark = mark_of(tensor);
    if (mark != nullptr && !mark->layout->whole()) {
      entry.layout = mark->layout;
      const auto global = mark->layout->global_sizes(tensor.sizes());
      entry.shape.assign(global.begin(), global.end());
    }
    tensors.push_back(std::move(entry));
  };
  const auto full_name = [](const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  };
  // The overload for const modules walks without asking for shared ownership of the root.
  const std::function<void(const std::string&, const torch::nn::Module&)> parameters =
      [&](const std::string& path, const torch::nn::Module& child) {
        for (const auto& item : child.named_parameters(/*recurse=*/false)) {
          add(full_name(path, item.key()), parameter_in_use(child, item.key(), item.value()));
        }
      };
  const std::function<void(const std::string&, const torch::nn::Module&)> buffers =
      [&](const std::string& path, const torch::nn::Module& child) {
        for (const auto& item : child.named_buffers(/*recurse=*/false)) {
          add(full_name(path, item.key()), item.value());
        }
      };
  module.apply(parameters);
  module.apply(buffers);
}

std::string ModelState::describe() const {
  std::string text;
  for (const auto& [name, number] : names) {
    const Tensor& tensor = tensors[number];
    text += c10::str(name, " = ", tensor.name, " ", tensor.local.scalar_type(), " ", tensor.shape);
    for (int axis = 0; tensor.layout && axis < tensor.layout->axes(); ++axis) {
      text += c10::str(" ", (*tensor.layout)[axis].dim);
    }
    text += "\n";
  }
  return text;
}

at::Tensor plain_values(const at::Tensor& tensor) {
  return mark_of(tensor) == nullptr ? tensor.detach() : unmarked_alias(tensor);
}

}  // namespace oslo
