#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// Gives content for values that no rank holds, where somebody asks for some. A context has one in
/// the planner's runs only: elsewhere the values exist, on other ranks, and made-up ones would be
/// wrong.
class ContentProvider {
 public:
  virtual ~ContentProvider() = default;

  /// The results of an operator that reads elements (`item`, `equal`). `arguments` are the
  /// operator's, with shapes for its tensors.
  virtual std::vector<c10::IValue> read(const OperatorEntry& op,
                                        std::vector<c10::IValue> arguments) = 0;

  /// What is written into `target`, an ordinary tensor, in the place of a value of this `shape`.
  /// Called before the write.
  virtual at::Tensor content_for(const at::Tensor& target, const at::Tensor& shape) = 0;
};

/// The provider's answer; without a provider (null) an error that names the operator.
std::vector<c10::IValue> read_elsewhere(ContentProvider* provider, const OperatorEntry& op,
                                        std::vector<c10::IValue> arguments);

}  // namespace oslo
