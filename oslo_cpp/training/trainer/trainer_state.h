#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "oslo_cpp/training/trainer/trainer_hook.h"

namespace oslo {

/// How far a training is, and the states of its hooks, for `SaveOptions::extra`.
nlohmann::json training_state(const Training& training, const TrainerHooks& hooks);

/// Reads a checkpoint with such a state, or the newest of a series: model, optimizer, random
/// generators, counts and hooks. Throws as `from_parallelized` does, and where a hook that kept a
/// state in the saved run is missing here. Collective over the world.
void resume_training(const std::string& folder, Training& training, const TrainerHooks& hooks);

}  // namespace oslo
