#pragma once

#include <cstdint>
#include <string>

#include "oslo_cpp/training/trainer/trainer_hook.h"

namespace oslo {

/// The share of labels whose class has the largest of the model's outputs, as "train/accuracy" and
/// "test/accuracy": outputs [..., classes] and labels [...]. Labels of `ignore_index` do not count,
/// as in LibTorch's cross_entropy. Outputs are kept for it.
class AccuracyHook : public TrainerHook {
 public:
  explicit AccuracyHook(int64_t ignore_index = -100) : ignored_(ignore_index) {}

  std::string name() const override { return "AccuracyHook"; }
  bool reads_outputs() const override { return true; }
  void after_train_iter(Training& training, const TrainedBatch& batch) override;
  void after_test_iter(Training& training, const TrainedBatch& batch) override;

 private:
  void add(Training& training, const TrainedBatch& batch) const;

  int64_t ignored_;
};

}  // namespace oslo
