#include "oslo_cpp/initialize/never_seeded.h"

#include <ATen/ATen.h>

#include <mutex>
#include <set>

#include "mpu/base/ledger.h"
#include "mpu/group/rank_check.h"
#include "parallelizers/data/replicas.h"
#include "parallelizers/deferred/content.h"
#include "parallelizers/deferred/draws.h"
#include "parallelizers/deferred/fill.h"
#include "parallelizers/deferred/model_tensors.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

/// Some steps of an ordinary model.
constexpr int kComparisons = 1000;

/// From rank 0 along one axis after the other: to all.
void broadcast_to_all(const MPU& mpu, const std::vector<at::Tensor>& tensors) {
  for (const Axis& axis : mpu.grid().axes()) {
    broadcast_from_first(*mpu.group(axis.name), tensors);
  }
}

/// What has content, each tensor once.
std::vector<at::Tensor> filled_tensors(const ModelView& model) {
  std::vector<at::Tensor> tensors;
  std::set<const void*> seen;
  for_each_tensor_of(model, [&](const at::Tensor& tensor, const std::string&) {
    if (!tensor.defined() || mark_of(tensor) != nullptr || is_deferred(tensor)) return;
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) tensors.push_back(tensor);
  });
  return tensors;
}

/// Without its history, and of an expanded buffer the elements that it has memory for.
at::Tensor elements_of(const at::Tensor& tensor) {
  at::Tensor elements = tensor.variable_data();
  for (int64_t dim = 0; dim < elements.dim(); ++dim) {
    const bool repeated = elements.size(dim) > 1 && elements.stride(dim) == 0;
    if (repeated) elements = elements.narrow(dim, 0, 1);
  }
  return elements;
}

void take_weights(const MPU& mpu, const ModelView& model) {
  std::vector<at::Tensor> elements;
  for (const at::Tensor& tensor : filled_tensors(model)) elements.push_back(elements_of(tensor));
  broadcast_to_all(mpu, elements);
  if (!is_deferred(model)) return;
  const at::Tensor states = states_of_draws(model);
  broadcast_to_all(mpu, {states});
  set_states_of_draws(model, states);
}

}  // namespace

void take_from_first(const TakenFromFirst& taken, const MPU& mpu, const ModelView& model,
                     std::vector<at::Generator> generators) {
  const RuleScope scope("initialize");
  if (taken.weights) {
    take_weights(mpu, model);
    agree_on_values_everywhere(mpu.world(), model);
  }
  for (at::Generator& generator : generators) {
    if (!taken.states) break;
    const std::lock_guard<std::mutex> lock(generator.mutex());
    at::Tensor state = generator.get_state();
    mpu.model_group()->broadcast(state);
    generator.set_state(state);
  }
  if (mpu.model_group()->size() == 1 || !taken.any()) return;
  if (mpu.size("pipeline") > 1) {
    compare_first_step();
  } else {
    compare_next(kComparisons);
  }
}

std::string told_of(const TakenFromFirst& taken) {
  std::string what;
  if (taken.weights) what = "all ranks take the initial weights of rank 0";
  if (taken.states) {
    what += std::string(what.empty() ? "" : ", and ") +
            "the ranks of one model take the random state of its first rank";
  }
  return "oslo: no rank was seeded: " + what +
         "; torch::manual_seed before the model is made gives the same numbers in every run";
}

}  // namespace oslo
