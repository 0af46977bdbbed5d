#include "parallelizers/memory/recompute/record/segment_bytes.h"

#include <algorithm>

namespace oslo::recompute {

double bytes_of(const MetTensor& met) {
  double bytes = static_cast<double>(c10::elementSize(met.dtype));
  for (const int64_t size : met.sizes) bytes *= static_cast<double>(size);
  return bytes;
}

SegmentBytes::SegmentBytes(const Segment& segment)
    : segment_(segment), bytes_(segment.storages.size()) {
  for (const OperatorRecord& record : segment.operators) {
    placed_ |= record.placed;
    for (const auto* tensors : {&record.arguments, &record.results}) {
      for (const MetTensor& met : *tensors) {
        if (met.storage != kNone)
          bytes_[met.storage] = std::max(bytes_[met.storage], bytes_of(met));
      }
    }
  }
  for (size_t i = 0; i < bytes_.size(); ++i) {
    const MetStorage& storage = segment.storages[i];
    if (storage.leaf) bytes_[i] = 0;
    const auto memory = placed_ ? c10::intrusive_ptr<c10::StorageImpl>() : storage.impl.lock();
    // Of a large tensor a small part; or repeated by `expand`.
    if (memory) bytes_[i] = std::min(bytes_[i], static_cast<double>(memory->nbytes()));
  }
}

double SegmentBytes::of(const SavedSlot& slot) const {
  return placed_ || !slot.value.defined() ? 0 : static_cast<double>(slot.value.nbytes());
}

double SegmentBytes::saved() const {
  std::vector<bool> counted(bytes_.size());
  double sum = 0;
  segment_.for_each_slot([&](const SavedSlot& slot, int) {
    if (slot.storage == kNone) {
      sum += of(slot);
    } else if (!counted[slot.storage]) {
      counted[slot.storage] = true;
      sum += bytes_[slot.storage];
    }
  });
  return sum;
}

}  // namespace oslo::recompute
