#include "parallelizers/placement/elsewhere/stage_carrier.h"

#include <utility>

namespace oslo {
namespace {

thread_local StageCarrier* current_carrier = nullptr;

}  // namespace

void StageCarrier::enter(StageSet) {}

at::Tensor StageCarrier::hand_over(const at::Tensor&, const Value& value, StageSet) {
  return value.local;
}

bool StageCarrier::lends(const at::Tensor&, int) {
  return false;
}

bool StageCarrier::takes_write(const at::Tensor&, int) {
  return false;
}

void StageCarrier::use(const at::Tensor&, StageSet, bool) {}

void StageCarrier::used(const at::Tensor&, StageSet, bool) {}

std::vector<c10::IValue> StageCarrier::share_read(StageSet, std::vector<c10::IValue> results) {
  return results;
}

void StageCarrier::share_generator(StageSet, const at::Generator&) {}

void StageCarrier::note_from_gradients(const at::Tensor&) {}

bool StageCarrier::is_from_gradients(const at::Tensor&) const {
  return false;
}

StageCarrier* StageCarrier::current() {
  return current_carrier;
}

StageCarrier::Scope::Scope(StageCarrier* carrier)
    : outer_(std::exchange(current_carrier, carrier)) {}

StageCarrier::Scope::~Scope() {
  current_carrier = outer_;
}

}  // namespace oslo
