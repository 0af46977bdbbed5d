#include "oslo_cpp/training/trainer/progress_of.h"

#include "oslo_cpp/training/show/peak_memory.h"

namespace oslo {
namespace {

c10::Device device_of(const Training& training) {
  const auto parameters = training.parallel.module()->parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device();
}

}  // namespace

TrainingProgress progress_of(const Training& training, const TrainingPace& pace, double loss) {
  TrainingProgress progress;
  progress.epoch = training.epoch;
  progress.epochs = training.epochs;
  progress.batch = training.batch;
  progress.batches = training.batches;
  progress.steps = training.steps;
  progress.max_steps = training.max_steps;
  progress.loss = loss;
  progress.seconds_a_batch = pace.seconds / static_cast<double>(pace.batches);
  progress.labels_per_second = static_cast<double>(pace.labels) / pace.seconds;
  progress.memory = peak_memory(device_of(training));
  return progress;
}

}  // namespace oslo
