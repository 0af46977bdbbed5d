#include "parallelizers/plan/dry/call_digest.h"

#include <bit>

#include "mpu/base/digest.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

c10::SmallVector<int64_t, 6> global_sizes(const at::Tensor& tensor) {
  if (const Mark* mark = mark_of(tensor)) return mark->layout->global_sizes(tensor.sizes());
  return {tensor.sizes().begin(), tensor.sizes().end()};
}

uint64_t take_in(uint64_t digest, const c10::IValue& argument) {
  if (argument.isTensor()) {
    if (!argument.toTensor().defined()) return digest;
    for (const int64_t size : global_sizes(argument.toTensor())) {
      digest = mix(digest, static_cast<uint64_t>(size + 1));
    }
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) digest = take_in(digest, element);
  } else if (argument.isInt()) {
    digest = mix(digest, static_cast<uint64_t>(argument.toInt()));
  } else if (argument.isDouble()) {
    digest = mix(digest, std::bit_cast<uint64_t>(argument.toDouble()));
  } else if (argument.isBool()) {
    digest = mix(digest, argument.toBool() ? uint64_t{1} : uint64_t{2});
  }
  return digest;
}

}  // namespace

void CallDigest::called(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  if (content_ != nullptr) content_->called(op);
  digest_ = mix(digest_, uint64_t{reinterpret_cast<uintptr_t>(op.schema)});
  for (const c10::IValue& argument : arguments) digest_ = take_in(digest_, argument);
}

}  // namespace oslo
