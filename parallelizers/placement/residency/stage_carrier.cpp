#include "parallelizers/placement/residency/stage_carrier.h"

#include <utility>

namespace oslo {
namespace {

thread_local StageCarrier* current_carrier = nullptr;

}  // namespace

void UseFollower::use(const at::Tensor&, StageSet, bool) {}

void UseFollower::used(const at::Tensor&, StageSet, bool) {}

bool UseFollower::lends(const at::Tensor&, int) {
  return false;
}

bool UseFollower::takes_write(const at::Tensor&, int) {
  return false;
}

void StageCarrier::enter(StageSet) {}

at::Tensor StageCarrier::hand_over(const at::Tensor&, const Value&, StageSet) {
  return {};
}

void StageCarrier::share_generator(StageSet, const at::Generator&) {}

StageCarrier* StageCarrier::current() {
  return current_carrier;
}

StageCarrier::Scope::Scope(StageCarrier* carrier)
    : outer_(std::exchange(current_carrier, carrier)) {}

StageCarrier::Scope::~Scope() {
  current_carrier = outer_;
}

}  // namespace oslo
