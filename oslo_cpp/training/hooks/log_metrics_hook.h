#pragma once

#include <iosfwd>
#include <string>

#include "oslo_cpp/training/trainer/trainer_hook.h"

namespace oslo {

/// A line for each epoch on rank 0, with all its means, and one where training ended early:
///
///   epoch 2 of 5  step 240  test/accuracy 0.93  test/loss 0.21  train/loss 0.25
class LogMetricsHook : public TrainerHook {
 public:
  LogMetricsHook();  ///< to the standard output
  /// `out` must outlive it.
  explicit LogMetricsHook(std::ostream& out) : out_(out) {}

  std::string name() const override { return "LogMetricsHook"; }
  int priority() const override { return 8; }
  void after_epoch(Training& training) override;

 private:
  std::ostream& out_;
};

}  // namespace oslo
