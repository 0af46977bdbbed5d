#include "checkpoint/resume/optimizer_state.h"

#include <nlohmann/json.hpp>

#include "checkpoint/formats/json/json_node.h"
#include "checkpoint/resume/optimizer_kind.h"
#include "checkpoint/resume/shared_states.h"
#include "mpu/base/error.h"
#include "mpu/world/agreement.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

using States = std::map<std::string, SavedOptimizer::State>;

/// The ranks at each place along the pipeline.
std::vector<std::vector<int>> ranks_by_stage(const RankGrid& grid) {
  std::vector<std::vector<int>> ranks(grid.size("pipeline"));
  for (int rank = 0; rank < grid.size(); ++rank) {
    ranks[grid.coordinate("pipeline", rank)].push_back(rank);
  }
  return ranks;
}

States joined(const std::vector<std::string>& texts) {
  States all;
  for (const std::string& text : texts) {
    if (text.empty()) continue;
    const nlohmann::json json = nlohmann::json::parse(text);
    for (const auto& [name, state] : read_states({json, "a rank's optimizer"})) {
      const auto [known, fresh] = all.emplace(name, state);
      OSLO_CHECK(fresh || known->second == state, "the pipeline stages that hold '", name,
                 "' have different optimizer states of it; step the optimizer on all ranks");
    }
  }
  return all;
}

/// The states that this rank has, those of which it has a share made whole.
SharedStates::Whole states_of(const torch::optim::Optimizer& optimizer, const OptimizerKind& kind) {
  if (const auto* shared = dynamic_cast<const SharedStates*>(&optimizer)) {
    return shared->whole_states();
  }
  SharedStates::Whole states;
  for (const auto& [parameter, state] : optimizer.state()) states[parameter] = kind.state(*state);
  return states;
}

}  // namespace

OptimizerState::OptimizerState(const torch::optim::Optimizer& optimizer, const ModelView& model,
                               const ModelState& state, ForeignTensors foreign)
    : optimizer_(&optimizer), groups_(stepped_parameters(optimizer, model, state, foreign)) {
  const OptimizerKind& kind = kind_of(optimizer);
  saved_.kind = kind.name();
  for (size_t i = 0; i < groups_.size(); ++i) {
    SavedOptimizer::Group& group = saved_.groups.emplace_back();
    group.options = kind.options(optimizer.param_groups()[i].options());
    for (const auto& [_, in_model] : groups_[i]) group.parameters.push_back(in_model->name);
  }
  outline_ = to_json(saved_).dump(1);
}

void OptimizerState::take_states() {
  const SharedStates::Whole states = states_of(*optimizer_, kind_of(*optimizer_));
  for (const std::vector<SteppedParameter>& group : groups_) {
    for (const auto& [parameter, in_model] : group) {
      const std::string& name = in_model->name;
      const auto found = states.find(parameter.unsafeGetTensorImpl());
      if (found == states.end() || !in_model->here) continue;
      SavedOptimizer::State& own = saved_.states[name];
      own.numbers = found->second.numbers;
      for (const auto& [field, tensor] : found->second.tensors) {
        own.tensors.push_back(field);
        parts_[optimizer_key(field, name)] = part_of_state(
            tensor, *in_model, c10::str("the optimizer's ", field, " of '", name, "'"));
      }
    }
  }
}

void OptimizerState::agree(const MPU& mpu) {
  const World& world = mpu.world();
  agree_on_text(world, "the optimizer", outline_, "make the same optimizer on every rank");
  // Replicas gather states of which they have shares: not before all of them are here.
  agree_on_success(world, "the optimizer's states", [this] { take_states(); });
  const std::string own_states = to_json(saved_.states).dump(1);
  const std::vector<std::vector<int>> stages = ranks_by_stage(mpu.grid());
  agree_on_text(world, "the state of the optimizer", own_states, "step the optimizer on all ranks",
                stages);
  const bool speaks = stages[mpu.rank("pipeline")].front() == world.rank();
  const std::string all = world.decide(
      "the states of the optimizer", speaks ? own_states : "",
      [](const std::vector<std::string>& texts) { return to_json(joined(texts)).dump(); });
  const nlohmann::json json = nlohmann::json::parse(all);
  saved_.states = read_states({json, "the optimizer"});
}

std::vector<ModelState::Tensor> OptimizerState::tensors() const {
  std::vector<ModelState::Tensor> tensors;
  for (const std::vector<SteppedParameter>& group : groups_) {
    for (const auto& [_, in_model] : group) {
      const auto state = saved_.states.find(in_model->name);
      if (state == saved_.states.end()) continue;
      for (const std::string& field : state->second.tensors) {
        ModelState::Tensor& tensor = tensors.emplace_back(*in_model);
        tensor.name = optimizer_key(field, in_model->name);
        tensor.layout = in_model->state_layout;
        const auto part = parts_.find(tensor.name);
        OSLO_CHECK(part != parts_.end() || !in_model->here, "the optimizer has no state of '",
                   in_model->name, "' here, but on other pipeline stages; step it on all ranks");
        const LayoutPtr lies = layouts_of(in_model->local).state;
        const at::Tensor own =
            part != parts_.end() ? part->second : blank_in(in_model->local, lies);
        tensor.local = lies ? marked_state(own, in_model->local) : own;
      }
    }
  }
  return tensors;
}

}  // namespace oslo
