#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "parallelizers/placement/layout/sequence_attention.h"
#include "parallelizers/placement/layout/value.h"

/// Attention whose queries lie cut along the sequence: (.., heads, positions, features).
namespace oslo::sequence_attention {

/// The one axis that cuts the sequence of the queries; -1 where none does, or several do.
int axis_of(const Value& query);

/// How it is done over that axis: what the model's config says, or what moves least. The same on
/// all ranks. Throws where the config asks for heads and these have none to cut.
SequenceAttention form_of(std::span<const Value> query_key_value, int axis);

/// Query, key and value with heads cut in place of the sequence, over `axis`; and back.
void by_heads(std::span<Value> query_key_value, int axis);
Value by_positions(Value result, int axis, const CutPtr& positions);

/// Where each of this rank's queries (or keys) stands in the sequence, on the CPU; undefined where
/// no axis cuts it.
at::Tensor positions_of(const Value& value);

/// Attention of queries at `positions` with all keys, of which each query sees those up to its own
/// position.
at::Tensor causal(c10::ArrayRef<at::Tensor> query_key_value, const at::Tensor& positions,
                  std::optional<double> scale, bool grouped);

}  // namespace oslo::sequence_attention
