#pragma once

#include <c10/core/ScalarType.h>

#include "mpu/group/group.h"

namespace oslo {

/// The type that the config has averages over `group` of gradients of `type` travel in: their own,
/// or a narrower one.
c10::ScalarType travel_type(Group& group, c10::ScalarType type);

}  // namespace oslo
