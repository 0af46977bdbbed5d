#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/resume/shared_states.h"
#include "mpu/group/group.h"

namespace oslo {

/// A parameter's state, of which this rank has a piece.
struct GatheredState {
  at::Tensor parameter;
  std::vector<int64_t> strides;  ///< of the memory that the pieces were cut of
  std::vector<int64_t> sizes;    ///< elements of every rank's piece, in the ranks' order
  std::optional<OptimizerKind::State> own = std::nullopt;
};

/// Joins the ranks' pieces: the tensors have the `strides`. A parameter of which nobody has
/// a state has none. Collective over `group`, whose ranks list the same parameters: what there is
/// as one message, and a gather for each tensor.
SharedStates::Whole gather_states(Group& group, const std::vector<GatheredState>& states);

}  // namespace oslo
