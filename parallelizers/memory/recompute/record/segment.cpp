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

std::vector<c10::Storage> outside_memory(const Segment& segment) {
  std::vector<c10::Storage> memory;
  for (const MetStorage& storage : segment.storages) {
    if (!storage.outside) continue;
    if (auto impl = storage.impl.lock()) memory.emplace_back(std::move(impl));
  }
  return memory;
}

}  // namespace oslo::recompute
