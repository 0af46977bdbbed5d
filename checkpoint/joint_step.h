#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mpu/world.h"

namespace oslo {

/// Runs `step` on every rank of the world and returns what each of them returned, by rank, once all
/// have ended. If it threw on any, every rank throws the same `Error`: the first failed rank's
/// message, led by its number unless all ranks say the same. So nobody goes on with half a group,
/// and nobody waits for a rank that has given up. Call it on every rank; inside `step`, only
/// collectives whose other members cannot have failed before are safe. `topic` names the purpose
/// when a rank does not answer.
std::vector<std::string> joint_step(const World& world, const std::string& topic,
                                    const std::function<std::string()>& step);

}  // namespace oslo
