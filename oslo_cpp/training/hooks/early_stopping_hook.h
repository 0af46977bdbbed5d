#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <string>

#include "oslo_cpp/training/trainer/trainer_hook.h"

namespace oslo {

struct EarlyStoppingOptions {
  /// Read behind each evaluation; it is the same on all ranks.
  TORCH_ARG(std::string, metric) = "test/loss";
  /// "min": a smaller one is better; "max": a larger one.
  TORCH_ARG(std::string, mode) = "min";
  /// How many evaluations in a row may be no better than the best one.
  TORCH_ARG(int64_t, patience) = 3;
  /// How much better counts as better.
  TORCH_ARG(double, min_delta) = 0.0;
};

/// Ends training when a metric has stopped to improve, on all ranks behind the same epoch. One that
/// is not a number is no better. Its count is saved and resumed with a CheckpointHook's.
class EarlyStoppingHook : public TrainerHook {
 public:
  explicit EarlyStoppingHook(const EarlyStoppingOptions& options = {});

  std::string name() const override { return "EarlyStoppingHook"; }
  void after_test(Training& training) override;
  nlohmann::json state_dict() const override;
  void load_state_dict(const nlohmann::json& state) override;

 private:
  EarlyStoppingOptions options_;
  bool seen_ = false;
  double best_ = 0;
  int64_t bad_ = 0;
};

}  // namespace oslo
