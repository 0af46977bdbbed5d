#include "oslo_cpp/engine/batch_cycle.h"

#include "mpu/base/error.h"

namespace oslo {

void BatchCycle::begins(Way way) {
  OSLO_CHECK(size_ == 1 || done_ < size_, "engine: ", size_,
             " batches ('gradient_accumulation') went backward, and the step is due; call "
             "engine.step() behind each backward pass");
  OSLO_CHECK(way_ == Way::none || way_ == way,
             "engine: engine.backward and a PipelineSchedule in one step, which each average "
             "gradients in their own way; run all batches of a step in one of them");
  way_ = way;
  failed_ = true;
}

void BatchCycle::ended() {
  failed_ = false;
  went_ = true;
  if (done_ < size_) ++done_;
}

bool BatchCycle::steps() {
  OSLO_CHECK(went_ && !failed_, "engine.step(): ",
             failed_ ? "the last backward pass failed; call engine.zero_grad() and begin the step "
                       "again"
                     : "nothing went backward since the last call; call engine.backward(loss), "
                       "not loss.backward(), or a PipelineSchedule's forward_backward_step");
  went_ = false;
  return done_ == size_;
}

bool BatchCycle::empties() {
  const bool between = done_ == 0 || done_ == size_;
  if (!between && !failed_) return false;
  restart();
  return true;
}

void BatchCycle::restart() {
  done_ = 0;
  way_ = Way::none;
  went_ = false;
  failed_ = false;
}

}  // namespace oslo
