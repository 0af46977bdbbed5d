#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// Counts the writes to a tensor, alike on every rank.
uint64_t writes_to(const at::Tensor& tensor, const Mesh& mesh);

/// What a value that crosses to stage `to` is received into on that stage's ranks; a shape on all
/// others. Contiguous, without history.
at::Tensor place_for(const Value& value, int to);

}  // namespace oslo
