#include "parallelizers/memory/recompute/take_saved.h"

#include <ATen/record_function.h>

#include <optional>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/memory/recompute/record/needs.h"

namespace oslo::recompute {
namespace {

void check_not_written(const Segment& segment) {
  std::vector<bool> read(segment.storages.size());
  for (size_t i = 0; i < segment.operators.size(); ++i) {
    if (!segment.needed[i]) continue;
    for (const MetTensor& argument : segment.operators[i].arguments) {
      if (argument.storage != kNone && !argument.statistics) read[argument.storage] = true;
    }
  }
  for (const OutsideTensor& tensor : segment.outside) {
    OSLO_CHECK(!read[tensor.storage] || tensor.version.current_version() == tensor.current,
               "one of the variables needed for gradient computation has been modified by an "
               "inplace operation: an input of a checkpointed function (or a parameter that it "
               "used) is at version ",
               tensor.version.current_version(), ", it was at version ", tensor.current,
               " when the function ended; write to a copy of it (clone())");
  }
}

}  // namespace

void run_again(Segment& segment, const TakeSlot& take) {
  check_not_written(segment);
  const auto run = [&](std::vector<bool> needed) {
    const CallState::Scope as_in_forward(*segment.state);
    const CastsOfModelOnly casts;
    Rerun rerun(segment, std::move(needed), take);
    const SavedTensorScope saving([&](const at::Tensor& saved) { return rerun.pack(saved); });
    if (!segment.again) {
      rerun.replay();
    } else {
      std::optional<at::RecordFunctionGuard> not_observed;
      if (at::hasCallbacks()) not_observed.emplace(false);
      const OperatorTap::Scope tapped(rerun);
      segment.again();
    }
    rerun.end();
  };
  const auto forget = [&] {
    segment.for_each_slot([](SavedSlot& slot, int) {
      if (!slot.kept) slot.value.reset();
    });
  };
  try {
    try {
      run(segment.needed);
    } catch (const c10::Error& error) {
      if (segment.whole || !is_content_missing(error)) throw;
      // The program reads, by a pointer, what no operator needs.
      forget();
      segment.whole = true;
      segment.needed = all_needed(segment);
      run(segment.needed);
    }
  } catch (...) {
    forget();
    throw;
  }
}

at::Tensor take_saved(Segment& segment, SavedSlot& slot) {
  const std::lock_guard<std::mutex> lock(segment.mutex);
  if (slot.kept || !segment.ended) return slot.value;
  if (!slot.value.defined()) {
    if (auto held = slot.taken.lock()) return at::Tensor(std::move(held));
    if (segment.about_to_rerun) segment.about_to_rerun();
    run_again(segment);
    OSLO_CHECK(slot.value.defined(),
               "checkpoint: a saved tensor did not come when its operators "
               "ran again");
  }
  at::Tensor value = std::move(slot.value);
  slot.value.reset();
  slot.taken = c10::weak_intrusive_ptr<c10::TensorImpl>(value.getIntrusivePtr());
  return value;
}

}  // namespace oslo::recompute
