#include "parallelizers/placement/door/autocast_of_shapes.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {
namespace {

thread_local AutocastMet* innermost = nullptr;

}  // namespace

AutocastMet::AutocastMet() : outer_(std::exchange(innermost, this)) {
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&AutocastMet::note).scopes({at::RecordScope::FUNCTION}));
}

AutocastMet::~AutocastMet() {
  at::removeCallback(handle_);
  innermost = outer_;
}

std::unique_ptr<at::ObserverContext> AutocastMet::note(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  const auto op = name ? c10::Dispatcher::singleton().findOp(*name) : std::nullopt;
  if (op && entry_of(*op).autocasts) {
    for (AutocastMet* each = innermost; each != nullptr; each = each->outer_) each->any_ = true;
  }
  return nullptr;
}

bool may_autocast_shapes(const Call& call) {
  if (!call.op().composite || !call.place().elsewhere || call.place().on_zeros) return false;
  return at::autocast::is_autocast_enabled(at::kCPU) ||
         at::autocast::is_autocast_enabled(at::kCUDA);
}

}  // namespace oslo
