#include "parallelizers/placement/operators/fused_run.h"

#include <utility>

namespace oslo {
namespace {

thread_local FusedRun* running = nullptr;

}  // namespace

FusedRun::Scope::Scope(FusedRun& run, Choices& notes, bool alone)
    : outer_(std::exchange(running, &run)) {
  run.notes_ = &notes;
  run.alone_ = alone;
}

FusedRun::Scope::Scope(FusedRun& run, const Choices& noted) : outer_(std::exchange(running, &run)) {
  run.noted_ = &noted;
  run.next_ = 0;
}

FusedRun::Scope::~Scope() {
  running = outer_;
}

FusedRun* FusedRun::current() {
  return running;
}

bool FusedRun::choose(bool now) {
  if (notes_ != nullptr) {
    notes_->push_back(now);
    return now;
  }
  return next_ < noted_->size() && (*noted_)[next_++];
}

}  // namespace oslo
