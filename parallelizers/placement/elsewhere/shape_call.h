#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "parallelizers/placement/elsewhere/content_provider.h"
#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// Operators on values that are elsewhere (on another pipeline stage; in the planner's runs,
/// everywhere) run on shapes: meta tensors without content. This is what is remembered of them, so
/// that it is found out once.
struct KnownShapes {
  /// Results of operators without a kernel for meta tensors, by operator, then by arguments.
  std::map<std::string, std::map<std::string, std::vector<c10::IValue>>> results;
  /// Told of operators whose results are like those in `results`, or come to be: nothing of theirs
  /// runs on shapes.
  std::function<void(const OperatorEntry& op, const std::vector<c10::IValue>& arguments,
                     const std::vector<c10::IValue>& results)>
      on_known;
  /// Operators whose rules call others without such a kernel: these rules work on zeros.
  std::set<std::string> on_zeros;
};

/// The shape of an ordinary tensor: on the meta device, differentiable if it is.
at::Tensor shape_of(const at::Tensor& tensor);

/// Zeros of this shape (of a mask: true), with its strides, differentiable if it is. The memory of
/// large ones is not touched until somebody writes to it.
at::Tensor zeros_of(const at::Tensor& shape);

/// Packed sequences: their lengths are read on the way to the other shapes.
bool reads_lengths(const OperatorEntry& op);

/// Whether elements decide what an operator returns, or how large it is.
bool reads_elements(const OperatorEntry& op);

/// Runs an operator below the door on shapes. Operators that have no kernel for that (in C++ some
/// have none) run once on zeros, or where values decide the results' sizes on what makes these the
/// largest; the results' shapes are remembered. Operators that read elements ask the provider;
/// without one (null) they are refused.
std::vector<c10::IValue> call_on_shapes(const OperatorEntry& op, std::vector<c10::IValue> arguments,
                                        KnownShapes& shapes, ContentProvider* provider);

}  // namespace oslo
