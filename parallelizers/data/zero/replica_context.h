#pragma once

#include <memory>

#include "mpu/group/group.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo {

/// What values share of which data replicas have parts: a mesh with the axes of `tensor`, the
/// model's own, and the replicas inside them (ModelContext::replica_axis, the last one).
std::shared_ptr<ModelContext> replica_context(const ModelContext& tensor,
                                              const std::shared_ptr<Group>& replicas);

}  // namespace oslo
