#include "oslo_cpp/training/hooks/accuracy_hook.h"

#include <ATen/ATen.h>

#include "mpu/base/error.h"

namespace oslo {

void AccuracyHook::add(Training& training, const TrainedBatch& batch) const {
  if (!batch.output.defined()) return training.sums.add("accuracy", 0.0, 0);
  const at::Tensor& label = batch.label;
  OSLO_CHECK(batch.output.dim() == label.dim() + 1 &&
                 batch.output.sizes().slice(0, label.dim()) == label.sizes(),
             "AccuracyHook: outputs ", batch.output.sizes(), " and labels ", label.sizes(),
             "; it reads outputs [..., classes] and labels [...]: write a hook of your own that "
             "adds to training.sums");
  const at::Tensor counts = label.ne(ignored_);
  const at::Tensor right = batch.output.argmax(-1).eq(label).logical_and(counts);
  training.sums.add("accuracy", right.sum(), counts.sum().item<double>());
}

void AccuracyHook::after_train_iter(Training& training, const TrainedBatch& batch) {
  add(training, batch);
}

void AccuracyHook::after_test_iter(Training& training, const TrainedBatch& batch) {
  add(training, batch);
}

}  // namespace oslo
