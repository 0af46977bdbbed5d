#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

#include <utility>

#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/operators/operator_entry.h"
#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {

// What pipeline stages mean for one call of an operator.

/// How many random numbers a call draws.
enum class Draws {
  none,
  as_shapes_say,    ///< whatever the elements are
  as_elements_say,  ///< a number that is rejected is followed by one more
};
Draws draws(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments);

/// What such a call draws from: the generator among its arguments, else the default one of
/// `device`.
at::Generator generator_of(c10::ArrayRef<c10::IValue> arguments, at::Device device);

/// Whether all tensors among them have content on this rank. Even elsewhere a few values are known
/// (how long packed sequences are): what is computed from them alone is known too.
bool all_known(c10::ArrayRef<c10::IValue> arguments);

/// The stages that run an operator on these arguments: those that hold all of them, else the
/// highest that holds one, to which the others are carried.
StageSet stages_of(c10::ArrayRef<c10::IValue> arguments);

/// Outside a step, a number that one stage computed must not be written into gradients: LibTorch's
/// clip_grad_norm_ would scale each stage's by the norm of those alone. Throws, naming ours.
void refuse_scale_of_stage(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments);

/// The parameter or buffer that a tensor is, or is a view of, and its mark. Null for values, and
/// for ordinary tensors that a stage's value was written into, which are values as well.
std::pair<at::Tensor, const Mark*> parameter_of(const at::Tensor& tensor);

}  // namespace oslo
