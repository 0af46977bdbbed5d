#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <string>

#include "oslo_cpp/training/rates/rate_schedule.h"
#include "oslo_cpp/training/rates/reduce_on_plateau.h"
#include "oslo_cpp/training/trainer/trainer_hook.h"

namespace oslo {

/// Advances a learning-rate schedule behind each step of the optimizer, or behind each epoch. A
/// step that was left out, as its gradients overflowed, is none. Saved and resumed with the
/// checkpoints of a CheckpointHook: a RateSchedule with its base rates, any other one by how often
/// it has stepped. The schedule must outlive it.
class LRSchedulerHook : public TrainerHook {
 public:
  explicit LRSchedulerHook(torch::optim::LRScheduler& schedule, bool by_epoch = false)
      : schedule_(schedule), by_epoch_(by_epoch) {}

  std::string name() const override { return "LRSchedulerHook"; }
  void after_train_iter(Training& training, const TrainedBatch& batch) override;
  void after_epoch(Training& training) override;
  nlohmann::json state_dict() const override;
  void load_state_dict(const nlohmann::json& state) override;

 private:
  torch::optim::LRScheduler& schedule_;
  bool by_epoch_;
};

/// Gives a ReduceLROnPlateau its metric behind each evaluation, "test/loss" unless said. Saved and
/// resumed, too. It must outlive this.
class PlateauHook : public TrainerHook {
 public:
  explicit PlateauHook(ReduceLROnPlateau& plateau, std::string metric = "test/loss")
      : plateau_(plateau), metric_(std::move(metric)) {}

  std::string name() const override { return "PlateauHook"; }
  void after_test(Training& training) override;
  nlohmann::json state_dict() const override { return plateau_.state_dict(); }
  void load_state_dict(const nlohmann::json& state) override { plateau_.load_state_dict(state); }

 private:
  ReduceLROnPlateau& plateau_;
  std::string metric_;
};

}  // namespace oslo
