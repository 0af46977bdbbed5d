#include "parallelizers/memory/recompute/record/segment.h"

namespace oslo::recompute {

void Segment::for_each_slot(const std::function<void(SavedSlot&, int)>& visit) const {
  for (size_t i = 0; i < operators.size(); ++i) {
    for (const auto& each : operators[i].saved) {
      if (const auto slot = each.lock()) visit(*slot, static_cast<int>(i));
    }
  }
  for (const auto& [place, slots] : saved_between) {
    for (const auto& each : slots) {
      if (const auto slot = each.lock()) visit(*slot, kNone);
    }
  }
}

}  // namespace oslo::recompute
