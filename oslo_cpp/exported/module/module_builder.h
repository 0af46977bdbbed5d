#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "oslo_cpp/exported/module/layers.h"
#include "oslo_cpp/exported/module/module_uses.h"
#include "parallelizers/modules/model_view.h"

namespace oslo::exported {

/// Registers Python's modules, parameters and buffers in a module, under their names: a layer of
/// LibTorch where Python had one that it has, too, else a `PythonModule`. `file` leads messages.
/// Throws `Error` for names that no module can have, and for two things of one name.
class ModuleBuilder {
 public:
  ModuleBuilder(torch::nn::Module& root, std::string file, const ModuleUses& uses,
                std::map<std::string, LayerSizes> sizes);

  /// Registers the module at `path`, and those above it that are missing.
  torch::nn::Module& add_module(const std::string& path);
  /// Registers a tensor in the module of its name; one that has a name already (a tied weight) is
  /// a member only under the second. The slot lives as long as `modules()`.
  ParameterSlot add_parameter(const std::string& name, const at::Tensor& tensor);
  /// Gives the tensor that is registered. `saved`: whether it is part of the model's state, as
  /// Python says by `persistent`.
  at::Tensor add_buffer(const std::string& name, const at::Tensor& tensor, bool saved);

  /// All modules but the root, by path.
  const std::map<std::string, std::shared_ptr<torch::nn::Module>>& modules() const {
    return modules_;
  }

 private:
  /// The module that a tensor belongs to, and its name there. Throws where the name is taken.
  std::pair<torch::nn::Module*, std::string> place_of(const std::string& name);

  torch::nn::Module& root_;
  const std::string file_;
  const ModuleUses& uses_;
  const std::map<std::string, LayerSizes> sizes_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
  std::set<const c10::TensorImpl*> registered_;
  std::set<std::string> names_;  ///< of parameters and buffers
};

/// "h.0.ln" and "weight" of "h.0.ln.weight".
std::pair<std::string, std::string> split_name(const std::string& name);

/// "Block" of "__main__.Block".
std::string short_class_name(const std::string& class_name);

}  // namespace oslo::exported
