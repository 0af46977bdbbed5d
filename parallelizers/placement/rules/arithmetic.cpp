#include "parallelizers/placement/rules/arithmetic.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>

#include "mpu/collectives/collectives.h"
#include "parallelizers/placement/engine/pointwise.h"

namespace oslo {

Value add_values(const Value& left, const Value& right) {
  c10::SmallVector<Value, 2> operands{left, right};
  resolve(pointwise_map(operands), operands, Keep::first_operand);
  return {operands[0].local + operands[1].local, operands[0].layout};
}

at::Tensor reduce_and_copy(const at::Tensor& partial, const Mesh& mesh, int axis) {
  return copy_to(reduce_from(partial, mesh.axis(axis)), mesh.axis(axis));
}

at::Tensor reduce_extreme(const at::Tensor& tensor, const Mesh& mesh, int axis, bool largest) {
  const c10::AutoGradMode no_grad(false);
  return mesh.axis(axis)->all_reduce(tensor.clone(at::MemoryFormat::Contiguous),
                                     largest ? Reduction::max : Reduction::min);
}

void check_indices(const at::Tensor& indices, int64_t size, const char* operation,
                   std::optional<int64_t> except) {
  if (indices.is_meta()) return;
  if (indices.is_cpu() && indices.scalar_type() == at::kLong && indices.is_contiguous()) {
    const c10::ArrayRef<int64_t> all(indices.const_data_ptr<int64_t>(), indices.numel());
    const bool fit = std::all_of(all.begin(), all.end(), [&](int64_t index) {
      return (index >= 0 && index < size) || index == except;
    });
    if (fit) return;
  }
  at::Tensor wrong = at::logical_or(indices.lt(0), indices.ge(size));
  if (except) wrong = at::logical_and(wrong, indices.ne(*except));
  if (!indices.is_cpu()) {
    at::_assert_async(wrong.any().logical_not(),
                      c10::str(operation, ": an index is not one of ", size));
    return;
  }
  TORCH_CHECK_INDEX(!wrong.any().item<bool>(), operation,
                    ": index out of range: ", indices.masked_select(wrong)[0].item<int64_t>(),
                    " is not one of ", size);
}

Value with_wide_classes(Value target) {
  if (target.local.scalar_type() == at::kByte) target.local = target.local.to(at::kLong);
  return target;
}

at::Tensor global_indices(const Layout::AxisCut& cut, int rank, const at::Tensor& like) {
  const at::Tensor all = at::arange(cut.cut->size(), like.options().dtype(at::kLong));
  return cut.cut->by_rank(all, 0).narrow(0, first_index(*cut.cut, rank), cut.cut->local_size(rank));
}

int64_t first_index(const Cut& cut, int rank) {
  const auto before = c10::IntArrayRef(cut.sizes()).slice(0, rank);
  return std::accumulate(before.begin(), before.end(), int64_t{0});
}

}  // namespace oslo
