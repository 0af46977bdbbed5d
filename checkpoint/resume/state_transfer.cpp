#include "checkpoint/resume/state_transfer.h"

#include <c10/core/GradMode.h>

#include <memory>
#include <optional>
#include <unordered_set>

#include "checkpoint/resume/optimizer_state.h"
#include "checkpoint/resume/shared_states.h"
#include "checkpoint/resume/stepped_parameters.h"
#include "checkpoint/state/model_state.h"
#include "mpu/base/error.h"
#include "mpu/world/agreement.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/layout/value.h"

namespace oslo {
namespace {

/// The same part with a mark of its own, so that it is no holder of its parameter's.
at::Tensor apart(const ModelState::Tensor& tensor) {
  const Mark* mark = mark_of(tensor.local);
  if (mark == nullptr) return tensor.local;
  at::Tensor part = plain_values(tensor.local);
  mark_in_place(part, mark->layout, tensor.name);
  return part;
}

/// The model's tensors, and what tied layers register without computing with it: an optimizer may
/// have states of that, too (Adagrad, from its construction on).
ModelState with_registered(const ModelView& model) {
  ModelState state(model);
  std::unordered_set<const c10::TensorImpl*> known;
  for (const ModelState::Tensor& tensor : state.tensors) {
    known.insert(tensor.local.unsafeGetTensorImpl());
  }
  for (const ParameterView& parameter : model.parameters()) {
    const at::Tensor& tensor = parameter.registered;
    if (!tensor.defined() || !known.insert(tensor.unsafeGetTensorImpl()).second) continue;
    state.tensors.push_back(state_entry(parameter.path + " as registered", tensor));
  }
  return state;
}

std::vector<at::Tensor> marked_in(const OptimizerKind::State& state) {
  std::vector<at::Tensor> marked;
  for (const auto& [_, tensor] : state.tensors) {
    if (mark_of(tensor) != nullptr) marked.push_back(tensor);
  }
  return marked;
}

}  // namespace

StateTransfer::StateTransfer(torch::optim::Optimizer& optimizer, const ModelView& model,
                             const MPU& mpu)
    : optimizer_(optimizer) {
  const c10::AutoGradMode no_grad(false);
  std::optional<ModelState> state;
  std::optional<OptimizerState> found;
  agree_on_success(mpu.world(), "reshard: the optimizer", [&] {
    kind_ = &kind_of(optimizer);
    state.emplace(with_registered(model));
    found.emplace(optimizer, model, *state, ForeignTensors::left_out);
    size_t stepped = 0;
    for (const auto& group : found->groups()) stepped += group.size();
    OSLO_CHECK(stepped > 0,
               "ReshardOptions().optimizer(...) steps no parameter of this model; "
               "give the one that was made of its parameters()");
  });
  found->agree(mpu);
  agree_on_success(mpu.world(), "reshard: the optimizer's states", [&] {
    const std::vector<ModelState::Tensor> tensors = found->tensors();
    size_t next = 0;
    for (const auto& group : found->groups()) {
      for (const auto& [parameter, in_model] : group) {
        const auto saved = found->saved().states.find(in_model->name);
        if (saved == found->saved().states.end()) continue;
        State& own = states_.emplace_back();
        own.parameter = parameter;
        own.was_marked = mark_of(parameter) != nullptr;
        own.numbers = saved->second.numbers;
        for (const std::string& field : saved->second.tensors) {
          own.tensors.emplace_back(field, apart(tensors[next++]));
        }
        const auto here = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (here == optimizer.state().end()) continue;
        holders_[parameter.unsafeGetTensorImpl()] = marked_in(kind_->state(*here->second));
      }
    }
  });
}

void StateTransfer::give() {
  const c10::AutoGradMode no_grad(false);
  auto* const shared = dynamic_cast<SharedStates*>(&optimizer_);
  for (State& state : states_) {
    const LayoutPtr now = layouts_of(state.parameter).state;
    if (!state.was_marked && !now && shared == nullptr) continue;  // it is where it belongs
    void* const key = state.parameter.unsafeGetTensorImpl();
    OptimizerKind::State parts{state.numbers, {}};
    for (auto& [field, tensor] : state.tensors) {
      const at::Tensor whole = full_tensor(tensor).detach();
      tensor.reset();
      if (!is_here(state.parameter)) continue;
      const at::Tensor part = now ? local_part(whole, *now) : whole;
      parts.tensors.emplace_back(field, state_like(part, state.parameter));
    }
    if (is_here(state.parameter)) {
      optimizer_.state()[key] = kind_->make_state(parts);
    } else {
      optimizer_.state().erase(key);
    }
  }
  if (shared != nullptr) shared->states_replaced();
}

}  // namespace oslo
