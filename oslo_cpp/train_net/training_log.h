#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "oslo_cpp/training/trainer/progress_of.h"
#include "oslo_cpp/training/trainer/training.h"

namespace oslo {

/// What rank 0 tells of a training: lines on the standard output, and metrics.json in the output
/// folder, a line of JSON each, as in LiBai:
///
///     {"iteration": 20, "consumed_samples": 640, "total_loss": 9.7713, "lr": 2e-05}
///
/// Other ranks say nothing. Numbers are written with all digits there, and with few here.
class TrainingLog {
 public:
  /// Keeps what metrics.json has up to `iteration`, where a resumed run goes on; 0: nothing. A
  /// killed run may have written of iterations that it did not save.
  TrainingLog(bool leads, const std::filesystem::path& folder, int64_t iteration);

  /// A line of its own.
  void say(const std::string& line) const;
  /// Behind a batch, which counts for the speed.
  void batch_ends(const TrainedBatch& batch, int data_ranks);
  /// Behind an iteration that is told: the loss of all data ranks, and the rate.
  void iteration(const Training& training, int64_t global_batch, double loss, double rate);
  /// Behind an evaluation.
  void evaluation(const Training& training, double loss, int64_t samples);

 private:
  using Clock = std::chrono::steady_clock;

  void write(const nlohmann::ordered_json& line);

  bool leads_;
  std::ofstream metrics_;
  Clock::time_point begin_ = Clock::now();
  TrainingPace pace_;
};

}  // namespace oslo
