#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace oslo {

/// What `target.set_data(data)` hands to `target` where either is cut over ranks: a parameter takes
/// its part of a placed tensor, an ordinary tensor the whole of it (which is gathered). `data`
/// itself where neither is placed; nothing where another pipeline stage holds the parameter, so
/// that it is a shape, unless the shape is of another type. Throws when a parameter would get
/// another shape.
std::optional<at::Tensor> data_to_take(const at::Tensor& target, const at::Tensor& data);

}  // namespace oslo
