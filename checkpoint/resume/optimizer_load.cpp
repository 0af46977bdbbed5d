#include "checkpoint/resume/optimizer_load.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "checkpoint/resume/shared_states.h"
#include "checkpoint/resume/stepped_parameters.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

const SavedOptimizer& optimizer_in(const CheckpointFolder& folder) {
  OSLO_CHECK(folder.index().optimizer, "the checkpoint ", printable_path(folder.path()),
             " has no optimizer; save it with SaveOptions().optimizer(&optimizer), or load it "
             "without");
  return *folder.index().optimizer;
}

/// Throws unless a group steps what it stepped when it was saved.
void check_same_parameters(const SavedOptimizer::Group& saved,
                           const std::vector<SteppedParameter>& stepped, const std::string& where) {
  std::set<std::string> there(saved.parameters.begin(), saved.parameters.end());
  for (const auto& [_, in_model] : stepped) {
    OSLO_CHECK(there.erase(in_model->name) > 0, where, " of the optimizer has '", in_model->name,
               "', in the checkpoint it has not; make the optimizer with the groups that it had");
  }
  OSLO_CHECK(there.empty(), where, " of the checkpoint's optimizer has '",
             printable(there.empty() ? "" : *there.begin()),
             "', this optimizer's has not; make the optimizer with the groups that it had");
}

/// The tensor as states of the parameter lie: their cut, and the parameter's device and strides.
at::Tensor read_like(const ModelState::Tensor& parameter, const std::string& key,
                     const CheckpointFolder& folder) {
  const auto there = folder.index().tensors.find(key);
  const std::string where = printable_path(folder.path());
  OSLO_CHECK(there != folder.index().tensors.end(), "the checkpoint ", where, " lacks '",
             printable(key), "' of the optimizer");
  OSLO_CHECK(there->second.shape == parameter.shape &&
                 is_type_of_state(there->second.dtype, parameter.local),
             "the checkpoint ", where, " has '", printable(key), "' as ", there->second.dtype, " ",
             c10::IntArrayRef(there->second.shape), ", its parameter is ",
             parameter.local.scalar_type(), " ", c10::IntArrayRef(parameter.shape));
  return state_like(folder.read(key, parameter.state_layout), parameter.local);
}

}  // namespace

OptimizerLoad::OptimizerLoad(torch::optim::Optimizer& optimizer, const ModelView& model,
                             const ModelState& state, const CheckpointFolder& folder)
    : optimizer_(optimizer), kind_(kind_of(optimizer)), saved_(optimizer_in(folder)) {
  const c10::AutoGradMode no_grad(false);
  OSLO_CHECK(saved_.kind == kind_.name(), "the checkpoint ", printable_path(folder.path()),
             " has the state of ", printable(saved_.kind), ", this optimizer is ", kind_.name());
  const auto groups = stepped_parameters(optimizer, model, state);
  OSLO_CHECK(saved_.groups.size() == groups.size(), "the checkpoint ",
             printable_path(folder.path()), " has an optimizer of ", saved_.groups.size(),
             " parameter groups, this one has ", groups.size());
  std::set<std::string> stepped;
  for (size_t i = 0; i < groups.size(); ++i) {
    check_same_parameters(saved_.groups[i], groups[i], c10::str("group ", i));
    // Whether they fit is found out before anything is set.
    const auto copy = optimizer.param_groups()[i].options().clone();
    kind_.set_options(*copy, saved_.groups[i].options);
    for (const auto& [_, in_model] : groups[i]) stepped.insert(in_model->name);
  }
  for (const auto& [name, _] : saved_.states) {
    OSLO_CHECK(stepped.count(name) > 0, "the checkpoint ", printable_path(folder.path()),
               " has an optimizer state of '", printable(name),
               "', which no group of the optimizer has");
  }
  for (const std::vector<SteppedParameter>& group : groups) {
    for (const auto& [parameter, in_model] : group) {
      if (!in_model->here) continue;
      ParamState& made = states_.emplace_back(parameter.unsafeGetTensorImpl(), nullptr).second;
      const auto found = saved_.states.find(in_model->name);
      if (found == saved_.states.end()) continue;
      OptimizerKind::State parts{found->second.numbers, {}};
      for (const std::string& field : found->second.tensors) {
        parts.tensors.emplace_back(
            field, read_like(*in_model, optimizer_key(field, in_model->name), folder));
      }
      made = kind_.make_state(parts);
    }
  }
}

void OptimizerLoad::commit() {
  for (size_t i = 0; i < saved_.groups.size(); ++i) {
    kind_.set_options(optimizer_.param_groups()[i].options(), saved_.groups[i].options);
  }
  for (auto& [parameter, state] : states_) {
    if (state) {
      optimizer_.state()[parameter] = std::move(state);
    } else {
      optimizer_.state().erase(parameter);
    }
  }
  if (auto* shared = dynamic_cast<SharedStates*>(&optimizer_)) shared->states_replaced();
}

}  // namespace oslo
