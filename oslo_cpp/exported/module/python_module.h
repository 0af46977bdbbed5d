#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>

#include "parallelizers/modules/module_traits.h"

namespace oslo {

/// Stands for a Python module: it holds what that one held, under the same names, and says its
/// class. What its forward does is part of the graph of the exported program.
class PythonModule : public torch::nn::Module, public ModuleTraits {
 public:
  /// `class_name` as Python has it: "Block".
  explicit PythonModule(std::string class_name) : class_name_(std::move(class_name)) {}

  const std::string& written_class() const override { return class_name_; }
  bool saves_buffer(const std::string& name) const override { return unsaved_.count(name) == 0; }
  void pretty_print(std::ostream& stream) const override { stream << class_name_; }

  at::Tensor* tied_parameter(const std::string& name) override {
    const auto found = tied_.find(name);
    return found == tied_.end() ? nullptr : &found->second;
  }

  /// Gives a parameter that is registered already a second name here, which `parameters()` does not
  /// list. What is returned lives as long as the module.
  at::Tensor* tie(const std::string& name, const at::Tensor& parameter) {
    register_parameter(name, {}, /*requires_grad=*/false);
    return &(tied_[name] = parameter);
  }

  /// Says what Python does by `register_buffer(..., persistent=False)`.
  void leave_out_of_state(const std::string& buffer) { unsaved_.insert(buffer); }

 protected:
  void set_written_class(std::string class_name) { class_name_ = std::move(class_name); }

 private:
  std::string class_name_;
  std::set<std::string> unsaved_;
  std::map<std::string, at::Tensor> tied_;
};

}  // namespace oslo
