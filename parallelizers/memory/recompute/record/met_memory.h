#pragma once

#include <unordered_map>

#include "parallelizers/memory/recompute/record/segment.h"

namespace oslo::recompute {

/// Knows the memory that a segment's operators have met by number. Memory that is freed meanwhile
/// keeps its number: nothing else can lie at the same address.
class MetMemory {
 public:
  explicit MetMemory(Segment& segment) : segment_(segment) {}

  /// The number of the tensor's memory; kNone where nobody met it, or it has none.
  int find(const at::Tensor& tensor) const;
  /// The same, after giving it one. `outside`: that of what is met first as an argument.
  int meet(const at::Tensor& tensor, bool outside);

 private:
  Segment& segment_;
  std::unordered_map<const c10::StorageImpl*, int> numbers_;
};

/// Calls `visit(tensor)` with each of an operator's arguments or results, undefined ones too, where
/// a schema has a tensor or a list of them.
template <typename Visit>
void for_each_place(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      visit(tensor ? *tensor : at::Tensor());
    }
  }
}

/// The value with what `change` makes of each of these, undefined ones too.
template <typename Change>
c10::IValue with_each_place(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    std::vector<at::Tensor> list = value.toTensorVector();
    for (at::Tensor& tensor : list) tensor = change(tensor);
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
      const at::Tensor tensor = change(each ? *each : at::Tensor());
      list.push_back(tensor.defined() ? std::optional(tensor) : std::nullopt);
    }
    return list;
  }
  return value;
}

}  // namespace oslo::recompute
