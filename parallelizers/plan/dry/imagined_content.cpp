#include "parallelizers/plan/dry/imagined_content.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "mpu/base/error.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/elsewhere/shape_call.h"

namespace oslo {

std::vector<c10::IValue> ImaginedContent::read(const OperatorEntry& op,
                                               std::vector<c10::IValue> arguments) {
  OSLO_CHECK(++reads_ <= kMostReads, "the forward read more than ", kMostReads,
             " values, which are zeros there (the last one by ", op.name,
             "): a loop that values end, such as while (h.norm().item<float>() < 20)");
  if (std::find(readers_.begin(), readers_.end(), op.name) == readers_.end()) {
    readers_.push_back(op.name);
  }
  if (op.name == "aten::equal") return {false};
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  for (c10::IValue& argument : arguments) {
    if (argument.isDevice()) argument = c10::Device(at::kCPU);
    argument =
        with_tensors_in(argument, [](const at::Tensor& shape) { return zeros_of(shape).zero_(); });
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
