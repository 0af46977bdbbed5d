#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// Counts the writes to a tensor, alike on every rank.
uint64_t writes_to(const at::Tensor& tensor, const ModelContext& context);

/// What a value that crosses to stage `to` is received into on that stage's ranks; a shape on all
/// others. Dense, in the order of the value's memory, without history.
at::Tensor place_for(const Value& value, int to);

/// A value's memory in its order, dense: what operators draw, and how they round, follows that
/// order (channels-last). One tensor, contiguous, where the value is; otherwise a second one says
/// which of the value's dimensions each of the first one's is. A gradient may be undefined.
std::vector<at::Tensor> message_of(const at::Tensor& local);
/// The value again; undefined (a gradient that is none) as it was.
at::Tensor value_of_message(const std::vector<at::Tensor>& message);
/// The same, of what the forward expects. Throws where it is something else.
at::Tensor expected_of_message(const std::vector<at::Tensor>& message, const at::Tensor& expected);
/// The value without history, itself where its memory is dense.
at::Tensor dense(const at::Tensor& local);

}  // namespace oslo
