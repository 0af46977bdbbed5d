#include "oslo_cpp/training/hooks/progress_hook.h"

#include <unistd.h>

#include <iostream>

#include "mpu/base/error.h"
#include "oslo_cpp/training/trainer/progress_of.h"

namespace oslo {
namespace {

constexpr auto kBetween = std::chrono::milliseconds(200);

}  // namespace

ProgressHook::ProgressHook(int64_t every)
    : ProgressHook(std::cerr, ::isatty(STDERR_FILENO) != 0, every) {}

ProgressHook::ProgressHook(std::ostream& out, bool is_terminal, int64_t every)
    : out_(out), on_terminal_(is_terminal), every_(every) {
  OSLO_CHECK(every >= 1, "ProgressHook: every ", every, "; show a line every 1 or more batches");
}

void ProgressHook::before_train(Training&) {
  seconds_ = 0;
  batches_ = labels_ = 0;
}

void ProgressHook::before_train_epoch(Training&) {
  last_batch_ = Clock::now();
}

void ProgressHook::after_train_iter(Training& training, const TrainedBatch& batch) {
  if (!training.leads()) return;
  const Clock::time_point now = Clock::now();
  seconds_ += std::chrono::duration<double>(now - last_batch_).count();
  last_batch_ = now;
  ++batches_;
  labels_ += batch.labels * training.mpu().size("data");
  if (on_terminal_ ? shown_ && now - last_line_ < kBetween : batches_ % every_ != 0) return;
  last_line_ = now;
  shown_ = true;

  const TrainingProgress progress =
      progress_of(training, {seconds_, batches_, labels_}, batch.loss.item<double>());
  const std::string line = progress_line(progress, on_terminal_);
  on_terminal_ ? out_ << "\r" << line << "\033[K" << std::flush : out_ << line << std::endl;
}

/// For the lines of other hooks.
void ProgressHook::after_train_epoch(Training& training) {
  if (training.leads() && on_terminal_ && shown_) out_ << "\r\033[K" << std::flush;
}

}  // namespace oslo
