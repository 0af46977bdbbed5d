#pragma once

#include <string>

#include "oslo_cpp/training/trainer/trainer_hook.h"

namespace oslo {

/// What a Trainer does that has nothing to do with the types of its model and loaders: it counts,
/// sums and calls the hooks.
class TrainerCore {
 public:
  TrainerCore(ParallelModel parallel, torch::optim::Optimizer& optimizer, TrainerHooks hooks);
  TrainerCore(const TrainerCore&) = delete;
  TrainerCore& operator=(const TrainerCore&) = delete;

  Training& training() { return training_; }
  bool reads_outputs() const;
  /// Whether fit() is to run another epoch, or batch.
  bool goes_on() const;

  void train_begins(int64_t epochs, int64_t max_steps);
  void train_ends();
  void epoch_begins(int64_t batches);
  void batch_ends(const TrainedBatch& batch);
  void epoch_ends();
  void test_begins();
  void test_batch_ends(const TrainedBatch& batch);
  Metrics test_ends();
  /// Behind the epoch and its evaluation.
  void epoch_is_over();

  /// Reads what a CheckpointHook saved, model and optimizer too.
  void resume(const std::string& folder);

 private:
  void add_loss(const TrainedBatch& batch);
  void put_means(const std::string& part);
  template <typename... Parameters, typename... Arguments>
  void call(void (TrainerHook::*what)(Parameters...), Arguments&&... arguments);

  Training training_;
  TrainerHooks hooks_;
};

}  // namespace oslo
