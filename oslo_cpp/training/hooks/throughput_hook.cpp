#include "oslo_cpp/training/hooks/throughput_hook.h"

namespace oslo {

void ThroughputHook::before_train_epoch(Training&) {
  last_ = std::chrono::steady_clock::now();
}

/// A mean over seconds: all ranks' rows over all ranks' seconds, of which each has a part of
/// one data rank's.
void ThroughputHook::after_train_iter(Training& training, const TrainedBatch& batch) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  const double share = training.is_last_stage() ? seconds / training.mpu().size("data") : 0;
  training.sums.add("rows_per_second", static_cast<double>(batch.rows), share);
  training.sums.add("labels_per_second", static_cast<double>(batch.labels), share);
}

}  // namespace oslo
