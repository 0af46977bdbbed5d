#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <map>

namespace oslo {

/// What the program computed from the gradients of a pipeline stage, between steps
/// (engine/gradient_number.h). Held weakly.
class GradientNotes {
 public:
  void note(const at::Tensor& value);
  bool knows(const at::Tensor& value) const;

 private:
  std::map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> noted_;
};

}  // namespace oslo
