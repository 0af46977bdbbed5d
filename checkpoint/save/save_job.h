#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/formats/file_format.h"
#include "checkpoint/formats/tensors/state_dict.h"
#include "checkpoint/index/checkpoint_index.h"
#include "checkpoint/save/save_options.h"
#include "checkpoint/save/save_progress.h"
#include "checkpoint/state/model_state.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

class OptimizerState;
class StagingDirectory;

/// Runs a step of a save on every rank and ends alike on all: all go on, or all throw.
using AgreeOnStep = std::function<void(const std::string& what, const std::function<void()>& step)>;

/// One save on this rank: first what is to be written is put together, then it is written, which
/// another thread may do.
class SaveJob {
 public:
  /// Agrees with the other ranks on model, folder and options, gathers what this rank will write,
  /// and makes the folder under its temporary name. Collective over the world; throws the same
  /// `Error` on every rank. Tensors share the model's memory where they can.
  SaveJob(const ModelView& model, const MPU& mpu, const std::string& directory,
          const SaveOptions& options);
  ~SaveJob();
  SaveJob(const SaveJob&) = delete;
  SaveJob& operator=(const SaveJob&) = delete;

  /// Copies the tensors into `memory` on the CPU, so that the model may go on, and writes those.
  /// What an earlier save of the same model had there is used again: to ask the system for new
  /// memory takes as long as the copies.
  void take_snapshot(std::vector<at::Tensor>& memory);

  /// Writes, syncs, and gives the folder its name. Uses nothing of the model's after a snapshot.
  /// Once, on every rank.
  void write(const AgreeOnStep& agree);

 private:
  struct Tensors {
    std::vector<at::Tensor> values;
    std::vector<std::pair<std::string, size_t>> names;  ///< in a file that knows ties
    std::vector<std::string> first_names;
  };

  void collect_part(const ModelState& state, const std::vector<ModelState::Tensor>& optimizer,
                    const MPU& mpu);
  void collect_whole(const ModelState& state, const std::vector<ModelState::Tensor>& optimizer);
  void write_tensors(const std::string& file, Format format, const StateDict& state,
                     const FileNotes& notes = {});
  void write_part();
  /// Decides how a merged save's tensors lie, so that what config.json says of them is true.
  void follow_config(const ModelView& model, const ModelState& state);
  /// The formats of a merged save's model.
  std::vector<Format> merged_formats() const;
  void write_merged();
  void write_json(const char* name, const nlohmann::json& json);
  void join_parts();
  void finish();

  SaveOptions options_;
  RankGrid grid_;
  bool leads_;         ///< rank 0, which writes what is there once
  std::string part_;   ///< the name of this rank's file, without extension; empty: it writes none
  Tensors model_;      ///< this rank's parts, or all (merged, rank 0)
  Tensors optimizer_;  ///< of a merged save; else they are among the model's
  StateDict random_;   ///< rank 0
  CheckpointIndex index_;
  std::set<std::string> transposed_;        ///< whose transposes a merged save's files hold
  std::unique_ptr<SaveProgress> progress_;  ///< of a merged save
  bool every_name_ = false;  ///< whether its file has tied weights twice, in a format without ties
  std::filesystem::path folder_;
  std::unique_ptr<StagingDirectory> staging_;
  std::filesystem::path series_;  ///< where it is of one
  nlohmann::json place_;          ///< in the series
};

}  // namespace oslo
