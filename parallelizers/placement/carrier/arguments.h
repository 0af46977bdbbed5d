#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// The tensors among an operator's arguments or results: alone, in lists, in lists with gaps.
/// Undefined ones are passed over.

/// Calls `visit` on each in one argument, in order.
template <typename Visit>
void for_each_tensor_in(const c10::IValue& argument, const Visit& visit) {
  if (argument.isTensor()) {
    if (argument.toTensor().defined()) visit(argument.toTensor());
  } else if (argument.isTensorList()) {
    for (const at::Tensor& tensor : argument.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (argument.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorVector()) {
      if (tensor && tensor->defined()) visit(*tensor);
    }
  }
}

template <typename Visit>
void for_each_tensor(c10::ArrayRef<c10::IValue> arguments, const Visit& visit) {
  for (const c10::IValue& argument : arguments) for_each_tensor_in(argument, visit);
}

/// The argument with each of its tensors replaced, in order, by what `change` makes of it.
template <typename Change>
c10::IValue with_tensors_in(const c10::IValue& argument, const Change& change) {
  if (argument.isTensor()) {
    return argument.toTensor().defined() ? c10::IValue(change(argument.toTensor())) : argument;
  }
  if (argument.isTensorList()) {
    std::vector<at::Tensor> list = argument.toTensorVector();
    for (at::Tensor& tensor : list) {
      if (tensor.defined()) tensor = change(tensor);
    }
    return list;
  }
  if (argument.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorVector()) {
      list.push_back(tensor && tensor->defined() ? std::optional(change(*tensor)) : std::nullopt);
    }
    return list;
  }
  return argument;
}

template <typename Change>
std::vector<c10::IValue> with_tensors(c10::ArrayRef<c10::IValue> arguments, const Change& change) {
  std::vector<c10::IValue> changed;
  changed.reserve(arguments.size());
  for (const c10::IValue& argument : arguments)
    changed.push_back(with_tensors_in(argument, change));
  return changed;
}

/// The context of the first placed or marked tensor, or of one whose mesh has all axes of that and
/// more; null without one.
ContextPtr context_of(c10::ArrayRef<c10::IValue> arguments);

}  // namespace oslo
