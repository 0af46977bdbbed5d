#pragma once

#include <cstdint>
#include <string>

#include "oslo_cpp/training/show/curve_picture.h"
#include "oslo_cpp/training/trainer/trainer_hook.h"

namespace oslo {

/// The loss over the steps: that of every `every`-th batch, over the rows (or what the criterion
/// counts) of all data ranks, and of each evaluation. Draws both as a picture, an SVG file, behind
/// each epoch, on rank 0; an empty path: none. The curve is saved and resumed with the checkpoints
/// of a CheckpointHook. One message of 16 bytes over the data ranks for each point, which waits for
/// the device.
class LossHook : public TrainerHook {
 public:
  explicit LossHook(std::string picture = "", int64_t every = 10);

  /// The points yet, by the optimizer's steps, the same on every rank.
  const Curve& train() const { return train_; }
  const Curve& test() const { return test_; }

  std::string name() const override { return "LossHook"; }
  int priority() const override { return 9; }
  void after_train_iter(Training& training, const TrainedBatch& batch) override;
  void after_test(Training& training) override;
  void after_epoch(Training& training) override;
  nlohmann::json state_dict() const override;
  void load_state_dict(const nlohmann::json& state) override;

 private:
  std::string picture_;
  int64_t every_;
  int64_t batches_ = 0;
  Curve train_{"train/loss", {}}, test_{"test/loss", {}};
};

}  // namespace oslo
