#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace oslo {

/// What a file says of a tensor before its bytes come.
struct TensorOutline {
  std::string name;
  std::vector<int64_t> shape;
  c10::ScalarType dtype;

  uint64_t bytes() const;
};

/// Tensors to be written that are not all there at once: what they will be, and a function that
/// makes one, asked for each once, in the order of the file.
struct TensorStream {
  std::vector<TensorOutline> outlines;
  std::function<at::Tensor(const std::string& name)> give;

  /// Of `give`; throws `Error` where it is not what was said.
  at::Tensor take(const TensorOutline& outline) const;
};

}  // namespace oslo
