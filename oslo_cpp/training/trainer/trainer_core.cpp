#include "oslo_cpp/training/trainer/trainer_core.h"

#include <algorithm>
#include <set>
#include <utility>

#include "mpu/base/error.h"
#include "oslo_cpp/training/trainer/trainer_state.h"

namespace oslo {

TrainerCore::TrainerCore(ParallelModel parallel, torch::optim::Optimizer& optimizer,
                         TrainerHooks hooks)
    : training_{std::move(parallel), optimizer}, hooks_(std::move(hooks)) {
  std::set<std::string> names;
  for (const auto& hook : hooks_) {
    OSLO_CHECK(hook != nullptr, "Trainer: one of the hooks is null");
    OSLO_CHECK(names.insert(hook->name()).second, "Trainer: two hooks are called '", hook->name(),
               "', and a checkpoint keeps the states by their names; leave one out, or give it a "
               "name() of its own");
  }
  std::stable_sort(hooks_.begin(), hooks_.end(),
                   [](const auto& a, const auto& b) { return a->priority() < b->priority(); });
  training_.state_dict = [this] { return training_state(training_, hooks_); };
}

template <typename... Parameters, typename... Arguments>
void TrainerCore::call(void (TrainerHook::*what)(Parameters...), Arguments&&... arguments) {
  for (const auto& hook : hooks_) (hook.get()->*what)(training_, arguments...);
}

bool TrainerCore::reads_outputs() const {
  return std::any_of(hooks_.begin(), hooks_.end(),
                     [](const auto& hook) { return hook->reads_outputs(); });
}

bool TrainerCore::goes_on() const {
  const bool steps_left = training_.max_steps == 0 || training_.steps < training_.max_steps;
  return steps_left && training_.stopped.empty() && training_.epoch < training_.epochs;
}

void TrainerCore::train_begins(int64_t epochs, int64_t max_steps) {
  OSLO_CHECK(epochs >= 1 && max_steps >= 0, "fit: epochs ", epochs, ", max_steps ", max_steps,
             "; set epochs from 1, and max_steps to 0 for no limit");
  training_.epochs = epochs;
  training_.max_steps = max_steps;
  training_.stopped.clear();
  call(&TrainerHook::before_train);
}

void TrainerCore::train_ends() {
  call(&TrainerHook::after_train);
}

void TrainerCore::epoch_begins(int64_t batches) {
  training_.batch = 0;
  if (batches >= 0) training_.batches = batches;
  training_.sums.clear();
  call(&TrainerHook::before_train_epoch);
}

/// All stages have it; it counts once.
void TrainerCore::add_loss(const TrainedBatch& batch) {
  training_.sums.add("loss", batch.loss * batch.weight,
                     training_.is_last_stage() ? batch.weight : 0);
}

void TrainerCore::batch_ends(const TrainedBatch& batch) {
  ++training_.batch;
  training_.steps += batch.stepped ? 1 : 0;
  add_loss(batch);
  call(&TrainerHook::after_train_iter, batch);
}

void TrainerCore::put_means(const std::string& part) {
  for (const auto& [name, mean] : training_.sums.means(training_.mpu())) {
    training_.metrics[part + "/" + name] = mean;
  }
  training_.sums.clear();
}

void TrainerCore::epoch_ends() {
  training_.batches = training_.batch;
  put_means("train");
  call(&TrainerHook::after_train_epoch);
}

void TrainerCore::test_begins() {
  training_.batch = 0;
  training_.sums.clear();
  call(&TrainerHook::before_test);
}

void TrainerCore::test_batch_ends(const TrainedBatch& batch) {
  ++training_.batch;
  add_loss(batch);
  call(&TrainerHook::after_test_iter, batch);
}

Metrics TrainerCore::test_ends() {
  put_means("test");
  call(&TrainerHook::after_test);
  Metrics found;
  const std::string part = "test/";
  for (const auto& [name, mean] : training_.metrics) {
    if (name.compare(0, part.size(), part) == 0) found[name.substr(part.size())] = mean;
  }
  return found;
}

void TrainerCore::epoch_is_over() {
  ++training_.epoch;
  call(&TrainerHook::after_epoch);
}

void TrainerCore::resume(const std::string& folder) {
  resume_training(folder, training_, hooks_);
}

}  // namespace oslo
