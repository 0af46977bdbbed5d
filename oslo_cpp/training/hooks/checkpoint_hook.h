#pragma once

#include <cstdint>
#include <string>

#include "oslo_cpp/training/trainer/trainer_hook.h"

namespace oslo {

/// Saves model, optimizer, random generators, counts and the states of all hooks behind every
/// `every_epochs` epochs and the last one, into a series (SaveOptions::step): `step-000100`, of
/// which the newest `keep_last` stay (0: all). `Trainer::resume(folder)` goes on from there, with
/// the numbers of a run that was not interrupted: at the beginning of an epoch. Its priority is 10,
/// so that the other hooks of an epoch are through.
class CheckpointHook : public TrainerHook {
 public:
  explicit CheckpointHook(std::string folder, int64_t every_epochs = 1, int keep_last = 0);

  std::string name() const override { return "CheckpointHook"; }
  int priority() const override { return 10; }
  void before_train(Training& training) override { saved_ = training.steps; }
  void after_epoch(Training& training) override;
  void after_train(Training& training) override;

 private:
  void save(Training& training);

  std::string folder_;
  int64_t every_;
  int keep_last_;
  int64_t saved_ = 0;  ///< the step of the last save
};

}  // namespace oslo
