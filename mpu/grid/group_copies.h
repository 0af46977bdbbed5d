#pragma once

#include <memory>

#include "mpu/group/group.h"

namespace oslo {

/// Of ranks that share something out among them (hybrid shards: Zhao et al. 2023, arXiv 2304.11277,
/// section 3.2.2), `copies` are those that hold what this rank holds, one of each such group: what
/// is averaged over `group` is averaged over them too. A group without copies has none.
void set_copies(Group& group, std::shared_ptr<Group> copies);
/// Null where there are none.
std::shared_ptr<Group> copies_of(const Group& group);

}  // namespace oslo
