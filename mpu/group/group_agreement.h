#pragma once

#include <functional>

#include "mpu/group/group.h"

namespace oslo {

/// Runs `step` on every rank of a group and returns once all have ended; if it threw on any, every
/// rank throws the message of the first such rank, led by its number in the group. Two small
/// collectives, the second only where one failed: for threads beside the one that uses the world's
/// agreements (mpu/world/agreement.h), which come in one order.
void agree_on_success(Group& group, const std::function<void()>& step);

}  // namespace oslo
