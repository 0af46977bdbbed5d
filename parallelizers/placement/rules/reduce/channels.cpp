#include "parallelizers/placement/rules/reduce/channels.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "parallelizers/placement/rules/arithmetic.h"

namespace oslo {

bool fit_channels(c10::ArrayRef<Value> operands) {
  const Value& x = operands[0];
  if (x.dim() < 2) return false;
  for (const int64_t size : x.sizes()) {
    if (size == 0) return false;
  }
  for (const Value& other : operands.slice(1)) {
    if (other.defined() && (other.dim() != 1 || other.size(0) != x.size(1))) return false;
  }
  return true;
}

DimensionMap map_of_channels(c10::ArrayRef<Value> operands) {
  const std::string all = letters(operands[0].dim());
  DimensionMap map{{all}, {all}};
  while (map.operands.size() < operands.size()) map.operands.push_back(kChannels);
  return map;
}

at::Tensor sum_over(at::Tensor sum, const Axes& axes, const ContextPtr& context) {
  for (const int axis : axes) sum = reduce_and_copy(sum, context->mesh(), axis);
  return sum;
}

at::Tensor per_channel(const at::Tensor& tensor, int64_t dims) {
  std::vector<int64_t> sizes(dims, 1);
  sizes[1] = tensor.numel();
  return tensor.reshape(sizes);
}

at::ScalarType type_of_statistics(const at::Tensor& x, c10::ArrayRef<Value> beside) {
  const at::ScalarType type = x.scalar_type();
  if (x.is_cuda()) return at::toOpMathType(type);
  for (const Value& other : beside) {
    if (other.defined()) return other.local.scalar_type();
  }
  return type;
}

}  // namespace oslo
