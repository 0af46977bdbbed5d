#include "oslo_cpp/initialize/memory/memory_budget.h"

#include <unordered_set>
#include <utility>

#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

LoopState state_of(const std::vector<at::Tensor>& tensors, const MemoryAccount& account) {
  LoopState state;
  const auto add = [&](const at::Tensor& tensor) {
    const at::Tensor memory = mark_of(tensor) == nullptr ? tensor : unmarked_alias(tensor);
    if (!memory.has_storage() ||
        !state.memory.insert(memory.storage().unsafeGetStorageImpl()).second)
      return;
    if (!memory.is_meta() && !account.counts(memory.storage())) {
      state.uncounted += static_cast<int64_t>(memory.storage().nbytes());
    }
  };
  for (const at::Tensor& tensor : tensors) {
    add(tensor);
    if (!tensor.is_leaf()) continue;
    if (!tensor.is_inference()) {
      state.writes += tensor.unsafeGetTensorImpl()->version_counter().current_version();
    }
    const at::Tensor& gradient = tensor.grad();
    if (!gradient.defined()) continue;
    state.gradients = true;
    add(gradient);
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
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : model.in_use()) tensors.push_back(parameter.tensor);
  for (const BufferView& buffer : model.buffers()) tensors.push_back(buffer.tensor);
  options.model = [tensors = std::move(tensors), account = options.account] {
    return state_of(tensors, *account);
  };
  return std::make_shared<SegmentBudget>(std::move(options));
}

}  // namespace oslo
