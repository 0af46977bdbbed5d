#include "parallelizers/pipeline/crossing/forward_writes.h"

#include <algorithm>

namespace oslo {

void ForwardWrites::add(const at::Tensor& tensor, int rank, int stage, bool writes) {
  Use& use = uses_[tensor.unsafeGetTensorImpl()];
  use.tensor = tensor;
  use.written |= writes;
  if (use.places.size() <= static_cast<size_t>(rank)) use.places.resize(rank + 1, -1);
  use.places[rank] = std::max(use.places[rank], stage);
}

void ForwardWrites::add(const ForwardWrites& other) {
  for (const auto& [_, use] : other.uses_) {
    for (size_t rank = 0; rank < use.places.size(); ++rank) {
      add(use.tensor, static_cast<int>(rank), use.places[rank], use.written);
    }
  }
}

void ForwardWrites::keep_written() {
  std::erase_if(uses_, [](const auto& each) { return !each.second.written; });
}

const std::vector<int>* ForwardWrites::places(const at::Tensor& tensor) const {
  const auto found = uses_.find(tensor.unsafeGetTensorImpl());
  return found == uses_.end() ? nullptr : &found->second.places;
}

bool ForwardWrites::operator==(const ForwardWrites& other) const {
  return std::equal(uses_.begin(), uses_.end(), other.uses_.begin(), other.uses_.end(),
                    [](const auto& one, const auto& two) {
                      return one.first == two.first && one.second.places == two.second.places;
                    });
}

bool UseOrder::note(const at::Tensor& tensor, int micro_batch, bool writes) {
  Latest& latest = latest_[tensor.unsafeGetTensorImpl()];
  const int before = writes ? std::max(latest.reader, latest.writer) : latest.writer;
  int& own = writes ? latest.writer : latest.reader;
  own = std::max(own, micro_batch);
  return before <= micro_batch;
}

}  // namespace oslo
