#pragma once

#include <string>
#include <utility>

#include "oslo_cpp/training/trainer/trainer_hook.h"

namespace oslo {

/// The config of a run as it was resolved, as text: the file's keys with all overrides, and the
/// stages of a pipeline's layers, behind comments with the sizes of all axes, the number of ranks
/// and the versions. `Config::from_file` reads it.
std::string run_config_text(const ParallelModel& parallel);

/// Writes it into `folder`, as run_config.json, before training.
class RunConfigHook : public TrainerHook {
 public:
  explicit RunConfigHook(std::string folder) : folder_(std::move(folder)) {}

  std::string name() const override { return "RunConfigHook"; }
  void before_train(Training& training) override;

 private:
  std::string folder_;
};

}  // namespace oslo
