#pragma once

#include <ATen/core/Tensor.h>

namespace oslo {

/// The elements of the gradient that this rank has of `parameter`, which has one: to be read and
/// written in place, by operators below the door. Of a sparse gradient they are the values of the
/// rows that are there, each row once. What a user assigned (`p.mutable_grad() = p.grad() / 4`) is
/// a value of the global shape: this rank's part takes its place, and where that lies otherwise
/// than the parameter it is collective over the parameter's mesh.
at::Tensor gradient_elements(const at::Tensor& parameter);

}  // namespace oslo
