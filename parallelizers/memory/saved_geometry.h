#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <optional>

namespace oslo {

/// How a plain tensor lies in its memory.
struct SavedGeometry {
  c10::DimVector sizes, strides;
  int64_t offset = 0;
  c10::DispatchKeySet keys;
  caffe2::TypeMeta dtype;
  std::optional<c10::Device> device;
};

/// A plain tensor over memory that has its elements. Without memory, reading an element throws.
at::Tensor lay(const SavedGeometry& geometry, c10::Storage memory);
SavedGeometry geometry_of(const at::Tensor& plain);
/// Whether that is what was thrown.
bool is_content_missing(const c10::Error& error);

}  // namespace oslo
