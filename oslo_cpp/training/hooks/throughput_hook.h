#pragma once

#include <chrono>
#include <string>

#include "oslo_cpp/training/trainer/trainer_hook.h"

namespace oslo {

/// Rows and labels (tokens of a text) that all data ranks together train on in a second, as
/// "train/rows_per_second" and "train/labels_per_second" of each epoch, by the time between its
/// beginning and the end of its last batch. Where a device computes by itself that is the time
/// until the last one was handed over.
class ThroughputHook : public TrainerHook {
 public:
  std::string name() const override { return "ThroughputHook"; }
  void before_train_epoch(Training& training) override;
  void after_train_iter(Training& training, const TrainedBatch& batch) override;

 private:
  std::chrono::steady_clock::time_point last_;
};

}  // namespace oslo
