#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/directory/load_options.h"
#include "checkpoint/resume/optimizer_load.h"
#include "checkpoint/resume/random_record.h"
#include "checkpoint/state/model_state.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// All that `LoadOptions` asks of a checkpoint beside the model's tensors, read and checked.
/// Nothing has changed before `commit`.
class ResumedState {
 public:
  /// Throws `Error` for what the checkpoint lacks, or what does not fit.
  ResumedState(const ModelView& model, const ModelState& state, const MPU& mpu,
               const CheckpointFolder& folder, const LoadOptions& options);
  void commit();

 private:
  LoadOptions options_;
  std::optional<OptimizerLoad> optimizer_;
  std::optional<RandomLoad> random_;
  int64_t scheduler_steps_ = 0;
  nlohmann::json extra_;
};

/// Throws `Error` for options that ask a folder of Hugging Face's for what none has.
void check_pretrained(const std::filesystem::path& folder, const LoadOptions& options);

}  // namespace oslo
