#include "oslo_cpp/training/hooks/checkpoint_hook.h"

#include <utility>

#include "mpu/base/error.h"

namespace oslo {

CheckpointHook::CheckpointHook(std::string folder, int64_t every_epochs, int keep_last)
    : folder_(std::move(folder)), every_(every_epochs), keep_last_(keep_last) {
  OSLO_CHECK(!folder_.empty() && every_ >= 1, "CheckpointHook: folder '", folder_,
             "', every_epochs ", every_, "; name a folder, and save every 1 or more epochs");
}

void CheckpointHook::save(Training& training) {
  if (std::exchange(saved_, training.steps) == training.steps) return;
  training.parallel.save_parallelized(folder_, SaveOptions()
                                                   .optimizer(&training.optimizer)
                                                   .step(training.steps)
                                                   .keep_last(keep_last_)
                                                   .extra({{"trainer", training.state_dict()}}));
}

void CheckpointHook::after_epoch(Training& training) {
  if (training.epoch % every_ == 0) save(training);
}

void CheckpointHook::after_train(Training& training) {
  save(training);
}

}  // namespace oslo
