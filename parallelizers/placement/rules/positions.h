#pragma once

#include <ATen/core/Tensor.h>

#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// Where in the whole `dim` the elements of this rank are, whatever axes cut it, on `device`.
at::Tensor positions_along(const Value& x, int64_t dim, at::Device device);

}  // namespace oslo
