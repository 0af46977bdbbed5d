#pragma once

#include <ATen/core/ivalue.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "parallelizers/placement/operator_entry.h"
#include "parallelizers/placement/value.h"

namespace oslo {

/// What a dry run remembers. In a dry run the rules work on meta tensors: shapes without content,
/// one rank of a pretended group. Whole values stay placed, so that every operator enters the door.
struct DryShapes {
  /// The device that tensors say they are on: the model's.
  at::Device device = at::kCPU;

  /// Results of operators without a kernel for meta tensors, by operator and arguments.
  std::map<std::string, std::vector<c10::IValue>> known;
  /// Operators whose rules call others without such a kernel: these rules work on zeros.
  std::set<std::string> on_zeros;
  /// Operators that asked for values and were given zeros, in order of appearance.
  std::vector<std::string> value_readers;
};

inline bool is_dry(const Value& value) {
  return value.layout && value.layout->mesh()->dry != nullptr;
}

/// The shape of an ordinary tensor: on the meta device, differentiable if it is.
at::Tensor shape_of(const at::Tensor& tensor);

/// Zeros of this shape that take no memory, differentiable if it is.
at::Tensor zeros_of(const at::Tensor& shape);

/// Runs an operator below the door on shapes. Operators that have no kernel for that (in C++ some
/// have none, and those that read values cannot) run once on zeros that take no memory; their
/// results' shapes are remembered.
std::vector<c10::IValue> call_on_shapes(const OperatorEntry& op, std::vector<c10::IValue> arguments,
                                        DryShapes& shapes);

}  // namespace oslo
