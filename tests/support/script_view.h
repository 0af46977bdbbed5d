#pragma once

#include <torch/script.h>

#include <string>
#include <utility>
#include <vector>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/modules/module_tree.h"

namespace oslo::test {

/// A TorchScript module as the library sees models: an adapter beside the one for
/// torch::nn::Module. Classes called Linear and Embedding are layers, as those of torch.nn are when
/// Python scripts them.
class ScriptWalk {
 public:
  static ModelView view_of(const torch::jit::Module& root) {
    ScriptWalk walk;
    walk.visit("", "", root);
    return {std::move(walk.modules_), std::move(walk.parameters_), std::move(walk.buffers_)};
  }

 private:
  static std::optional<LayerView> layer_of(const torch::jit::Module& module) {
    const std::string kind = module.type()->name()->name();
    if (kind != "Linear" && kind != "Embedding") return std::nullopt;
    LayerView layer;
    layer.kind = kind == "Linear" ? LayerKind::linear : LayerKind::embedding;
    layer.weight.registered = module.attr("weight").toTensor();
    if (module.hasattr("bias")) layer.bias.registered = module.attr("bias").toTensor();
    return layer;
  }

  void visit(const std::string& path, const std::string& name, const torch::jit::Module& module) {
    const size_t position = modules_.size();
    ModuleView entry;
    entry.path = path;
    entry.name = name;
    entry.class_name = module.type()->name()->qualifiedName();
    entry.layer = layer_of(module);
    entry.own_matrices = true;
    modules_.push_back(std::move(entry));
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      ParameterView found;
      found.registered = parameter.value;
      found.path = join_path(path, parameter.name);
      found.name = parameter.name;
      found.module = position;
      parameters_.push_back(std::move(found));
    }
    for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
      buffers_.push_back({join_path(path, buffer.name), buffer.value});
    }
    for (const auto& child : module.named_children()) {
      visit(join_path(path, child.name), child.name, child.value);
    }
  }

  std::vector<ModuleView> modules_;
  std::vector<ParameterView> parameters_;
  std::vector<BufferView> buffers_;
};

}  // namespace oslo::test
