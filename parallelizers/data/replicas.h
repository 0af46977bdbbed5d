#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "mpu/group/group.h"

namespace oslo {

/// Throws the same error on every rank unless all of them give the same `lines`; it shows the first
/// line that differs. `what` is what the lines describe ("the model"). One small collective where
/// they agree.
void check_replicas_agree(Group& group, const std::string& what,
                          const std::vector<std::string>& lines);

/// Overwrites tensors with those of group rank 0, in few messages, whatever their types. Of marked
/// tensors, this rank's part.
void broadcast_from_first(Group& group, const std::vector<at::Tensor>& tensors);

}  // namespace oslo
