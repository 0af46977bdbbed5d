#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>

#include "oslo_cpp/training/show/progress_line.h"
#include "oslo_cpp/training/trainer/trainer_hook.h"

namespace oslo {

/// How far training is, on rank 0's standard error (progress_line.h): on a terminal one line with a
/// bar, written over several times a second; elsewhere a line every `every` batches. It shows the
/// loss of rank 0's own rows, labels (tokens) of all data ranks a second and the time left, both by
/// this run's mean, and the most memory that rank 0 has used. Reads the loss when it is shown, and
/// then waits for the device.
class ProgressHook : public TrainerHook {
 public:
  explicit ProgressHook(int64_t every = 50);
  /// To a stream in place of the standard error.
  ProgressHook(std::ostream& out, bool is_terminal, int64_t every = 50);

  std::string name() const override { return "ProgressHook"; }
  void before_train(Training& training) override;
  void before_train_epoch(Training& training) override;
  void after_train_iter(Training& training, const TrainedBatch& batch) override;
  void after_train_epoch(Training& training) override;

 private:
  using Clock = std::chrono::steady_clock;

  std::ostream& out_;
  bool on_terminal_;
  int64_t every_;
  Clock::time_point last_batch_, last_line_;
  double seconds_ = 0;
  int64_t batches_ = 0, labels_ = 0;
  bool shown_ = false;
};

}  // namespace oslo
