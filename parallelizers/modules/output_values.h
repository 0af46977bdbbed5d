#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "parallelizers/modules/output_tensors.h"

namespace oslo {

/// The tensors in a value of TorchScript's kinds: tuples, lists, dictionaries of such values.
template <>
struct OutputTensors<c10::IValue> {
  static constexpr bool known = true;
  static void collect(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
    value.visit([&](const c10::IValue& part) {
      if (part.isTensor() && part.toTensor().defined()) tensors.push_back(part.toTensor());
      return false;
    });
  }
};

}  // namespace oslo
