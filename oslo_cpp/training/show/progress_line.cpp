#include "oslo_cpp/training/show/progress_line.h"

#include <algorithm>
#include <sstream>

#include "mpu/base/bytes.h"
#include "mpu/base/words/progress_text.h"

namespace oslo {
namespace {

/// Batches of all epochs; negative: unknown.
int64_t batches_of(const TrainingProgress& progress) {
  return progress.batches < 0 ? -1 : progress.batches * progress.epochs;
}

int64_t through(const TrainingProgress& progress) {
  return std::max<int64_t>(progress.batches, 0) * progress.epoch + progress.batch;
}

double of(int64_t part, int64_t all) {
  return std::min(1.0, static_cast<double>(part) / static_cast<double>(std::max<int64_t>(all, 1)));
}

}  // namespace

double share_of(const TrainingProgress& progress) {
  const double by_epochs = progress.batches < 0 ? -1 : of(through(progress), batches_of(progress));
  if (progress.max_steps == 0) return by_epochs;
  return std::max(by_epochs, of(progress.steps, progress.max_steps));
}

std::string progress_line(const TrainingProgress& progress, bool bar) {
  std::ostringstream line;
  line.precision(4);
  const double share = share_of(progress);
  if (bar && share >= 0) line << bar_text(share) << "  ";
  line << "epoch " << progress.epoch + 1 << " of " << progress.epochs << "  step " << progress.steps
       << "  loss " << progress.loss;
  if (progress.labels_per_second > 0) {
    line << "  " << static_cast<int64_t>(progress.labels_per_second) << " labels/s";
  }
  if (progress.memory > 0) line << "  " << byte_text(progress.memory);
  const int64_t done = through(progress);
  if (share > 0 && progress.seconds_a_batch > 0) {
    const double all = static_cast<double>(done) / share;
    line << "  " << duration_text((all - static_cast<double>(done)) * progress.seconds_a_batch)
         << " left";
  }
  return line.str();
}

}  // namespace oslo
