#pragma once

#include <string>

#include "mpu/world/world.h"

namespace oslo {

/// Where a run keeps its series of checkpoints.
std::string checkpoints_in(const std::string& output_dir);

/// Throws `ConfigError` on every rank where a new run would write over the checkpoints of another
/// one, and where one that is to be resumed has none. Collective over the world.
void check_output_folder(const World& world, const std::string& output_dir, bool resumes);

}  // namespace oslo
