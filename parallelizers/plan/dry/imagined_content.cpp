#include "parallelizers/plan/dry/imagined_content.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "mpu/base/digest.h"
#include "mpu/base/error.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/elsewhere/shape_call.h"

namespace oslo {

void ImaginedContent::begin_run() {
  reads_ = 0;
  last_called_ = {};
  places_.clear();
  turns_.clear();
}

void ImaginedContent::called(const OperatorEntry& op) {
  std::shift_left(last_called_.begin(), last_called_.end(), 1);
  last_called_.back() = op.schema;
}

uint64_t ImaginedContent::place_of_read() const {
  uint64_t place = 0;
  for (const c10::FunctionSchema* schema : last_called_) {
    place = mix(place, uint64_t{reinterpret_cast<uintptr_t>(schema)});
  }
  return place;
}

bool ImaginedContent::imagine_other() {
  if (others_.size() >= kMostOthers) return false;
  const auto untried = std::find_if(places_.rbegin(), places_.rend(),
                                    [&](uint64_t place) { return others_.count(place) == 0; });
  if (untried == places_.rend()) return false;
  others_.insert(*untried);
  return true;
}

std::vector<c10::IValue> ImaginedContent::read(const OperatorEntry& op,
                                               std::vector<c10::IValue> arguments) {
  const uint64_t place = place_of_read();
  std::erase(places_, place);
  places_.push_back(place);
  const bool one = ones_ != (others_.count(place) > 0);
  OSLO_CHECK(patient_ || ++turns_[place] <= kMostTurns, "the forward read more than ", kMostTurns,
             " values at one place");
  const int64_t most = ones_ ? kMostReadsOfOnes : kMostReads;
  OSLO_CHECK(++reads_ <= most, "the forward read more than ", most, " values, which are ",
             ones_ ? "ones" : "zeros", " there (the last one by ", op.name,
             "): a loop that values end, such as while (h.norm().item<float>() < 20)");
  if (std::find(readers_.begin(), readers_.end(), op.name) == readers_.end()) {
    readers_.push_back(op.name);
  }
  if (op.name == "aten::equal") return {one};
  if (op.name == "aten::allclose") return {!one};  // zeros are
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  for (c10::IValue& argument : arguments) {
    if (argument.isDevice()) argument = c10::Device(at::kCPU);
    argument = with_tensors_in(
        argument, [one](const at::Tensor& shape) { return zeros_of(shape).fill_(one ? 1 : 0); });
  }
  op.handle.callBoxed(&arguments);
  return arguments;
}

at::Tensor ImaginedContent::content_for(const at::Tensor& target, const at::Tensor& shape) {
  const at::Tensor root = target.is_view() ? at::Tensor(target._base()) : target;
  const c10::StorageImpl* storage = root.storage().unsafeGetStorageImpl();
  if (written_.count(storage) == 0) {
    const c10::AutoGradMode no_grad(false);
    const at::Tensor bytes = at::empty({0}, root.options().dtype(at::kByte)).set_(root.storage());
    written_[storage] = {root, bytes, bytes.clone(), root.requires_grad()};
  }
  return zeros_of(shape).to(target.device());
}

void ImaginedContent::restore_written() {
  const c10::AutoGradMode no_grad(false);
  for (auto& [storage, written] : written_) {
    // What was made in inference mode may be written there alone, and is in no graph.
    const c10::InferenceMode as_made(written.bytes.is_inference());
    written.bytes.copy_(written.before);
    if (!written.in_graph && !written.tensor.is_inference()) written.tensor.detach_();
  }
  written_.clear();
}

}  // namespace oslo
