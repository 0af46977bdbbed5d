#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace oslo {

/// Of a module that stands for one of another language: what `torch::nn::Module` has no words for.
class ModuleTraits {
 public:
  virtual ~ModuleTraits() = default;
  /// The class that its author wrote: what plans, policies and messages show (`class_name`).
  virtual const std::string& written_class() const = 0;
  /// Whether a buffer that it registered is part of the model's state. Others are constants of its
  /// forward: a `ModelView` does not list them, so that no checkpoint has them and every stage of a
  /// pipeline does.
  virtual bool saves_buffer(const std::string& name) const = 0;
  /// The parameter that its forward reads under `name`, where that is registered elsewhere under
  /// another name (a tie) and here as undefined; null for other names.
  virtual at::Tensor* tied_parameter(const std::string& /*name*/) { return nullptr; }
  /// Why it cannot be cut into pipeline stages, and what can be done; empty: it can.
  virtual std::string no_stages() const { return {}; }
};

}  // namespace oslo
