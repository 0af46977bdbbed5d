#include "oslo_cpp/training/trainer/trainer_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "mpu/base/error.h"

namespace oslo {

nlohmann::json training_state(const Training& training, const TrainerHooks& hooks) {
  nlohmann::json states = nlohmann::json::object();
  for (const auto& hook : hooks) {
    nlohmann::json state = hook->state_dict();
    if (!state.is_null()) states[hook->name()] = std::move(state);
  }
  return {{"epoch", training.epoch}, {"steps", training.steps}, {"hooks", states}};
}

void resume_training(const std::string& folder, Training& training, const TrainerHooks& hooks) {
  nlohmann::json extra;
  training.parallel.from_parallelized(folder,
                                      LoadOptions().optimizer(&training.optimizer).extra(&extra));
  OSLO_CHECK(extra.contains("trainer") && extra["trainer"].contains("hooks"), "the checkpoint ",
             folder, " is not of an oslo::CheckpointHook: load it by from_parallelized");
  const nlohmann::json& state = extra["trainer"];
  for (const auto& item : state["hooks"].items()) {
    const auto hook = std::find_if(hooks.begin(), hooks.end(),
                                   [&](const auto& each) { return each->name() == item.key(); });
    OSLO_CHECK(hook != hooks.end(), "the checkpoint ", folder, " has the state of a hook '",
               item.key(),
               "', which this trainer does not have; give it the hooks of the run "
               "that is resumed");
    (*hook)->load_state_dict(item.value());
  }
  training.epoch = state.at("epoch");
  training.steps = state.at("steps");
}

}  // namespace oslo
