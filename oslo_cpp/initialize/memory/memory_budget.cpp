#include "oslo_cpp/initialize/memory/memory_budget.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;

/// Changes where the first element does: LibTorch's SGD writes through `data()`, which counts no
/// write.
uint64_t first_element(const at::Tensor& memory) {
  uint64_t bits = 0;
  if (memory.numel() > 0) {
    std::memcpy(&bits, memory.const_data_ptr(), std::min<size_t>(sizeof bits, memory.itemsize()));
  }
  return bits;
}

/// `tensors`: the model's, which own the budget by way of their marks.
LoopState state_of(const std::vector<WeakTensor>& tensors, const MemoryAccount& account) {
  LoopState state;
  const auto add = [&](const at::Tensor& memory) {
    if (!memory.has_storage() || memory.is_meta()) return;
    if (!state.memory.insert(memory.storage().unsafeGetStorageImpl()).second) return;
    if (account.counts(memory.storage())) return;
    state.uncounted += static_cast<int64_t>(memory.storage().nbytes());
  };
  const auto plain = [](const at::Tensor& tensor) {
    return mark_of(tensor) == nullptr ? tensor : unmarked_alias(tensor);
  };
  for (const WeakTensor& weak : tensors) {
    auto impl = weak.lock();
    if (!impl) continue;
    const at::Tensor tensor(std::move(impl));
    const at::Tensor memory = plain(tensor);
    add(memory);
    if (!tensor.is_leaf() || !tensor.requires_grad()) continue;
    state.writes += tensor.unsafeGetTensorImpl()->version_counter().current_version();
    if (memory.is_cpu()) state.contents = (state.contents | 1) * 31 + first_element(memory);
    const at::Tensor& gradient = tensor.grad();
    if (!gradient.defined()) continue;
    state.gradients = true;
    add(plain(gradient));
  }
  return state;
}

}  // namespace

int64_t memory_budget(const ConfigValues& values, int64_t memory_limit) {
  if (!values.activation_checkpoint) return 0;
  return values.activation_memory.value_or(memory_limit);
}

std::shared_ptr<SegmentBudget> segment_budget(int64_t bytes,
                                              const std::vector<SegmentLayers>& segments,
                                              const ModelView& model, at::Device device) {
  SegmentBudget::Options options;
  options.bytes = bytes;
  options.device = device;
  options.account = MemoryAccount::of_this_thread(device);
  for (const SegmentLayers& segment : segments) options.names.push_back(segment.name);
  std::vector<WeakTensor> tensors;
  for (const NamedTensor& parameter : model.in_use()) {
    tensors.emplace_back(parameter.tensor.getIntrusivePtr());
  }
  for (const BufferView& buffer : model.buffers()) {
    tensors.emplace_back(buffer.tensor.getIntrusivePtr());
  }
  options.model = [tensors = std::move(tensors), account = options.account] {
    return state_of(tensors, *account);
  };
  return std::make_shared<SegmentBudget>(std::move(options));
}

}  // namespace oslo
