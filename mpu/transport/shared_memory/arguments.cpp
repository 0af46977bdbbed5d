#include "mpu/transport/shared_memory/arguments.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <numeric>

#include "mpu/base/error.h"

namespace oslo::shared_memory {

const at::Tensor& only(const Tensors& tensors, const char* operation) {
  OSLO_CHECK(tensors.size() == 1, operation, " takes one tensor, and got ", tensors.size());
  return tensors.front();
}

const Tensors& only(const std::vector<Tensors>& lists, const char* operation) {
  OSLO_CHECK(lists.size() == 1, operation, " takes one list of tensors, and got ", lists.size());
  return lists.front();
}

void check_root(int64_t root, int64_t root_tensor, int size) {
  OSLO_CHECK(root >= 0 && root < size, "root ", root, " is not in a group of ", size);
  OSLO_CHECK(root_tensor == 0, "root tensor ", root_tensor, ": there is only one tensor a rank");
}

void check_list(const Tensors& tensors, const at::Tensor& like, size_t count,
                const char* operation) {
  OSLO_CHECK(tensors.size() == count, operation, " takes a list of ", count, " tensors, and got ",
             tensors.size());
  for (const at::Tensor& tensor : tensors) {
    check_movable(tensor);
    OSLO_CHECK(tensor.scalar_type() == like.scalar_type(), operation, " got tensors of ",
               tensor.scalar_type(), " and ", like.scalar_type(), " in one call");
  }
}

Buffers inputs_of(const Tensors& tensors) {
  Buffers buffers;
  buffers.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) buffers.push_back(Buffer::input(tensor));
  return buffers;
}

Buffers outputs_of(const Tensors& tensors) {
  Buffers buffers;
  buffers.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) buffers.push_back(Buffer::output(tensor, false));
  return buffers;
}

Buffers parts_of(const Buffer& whole, const Buffer& part, int count, const char* operation) {
  OSLO_CHECK(whole.type() == part.type() && whole.bytes() == part.bytes() * count, operation,
             ": a tensor of ", whole.bytes(), " bytes of ", whole.type(), " is not ", count,
             " times one of ", part.bytes(), " bytes of ", part.type());
  Buffers parts;
  parts.reserve(count);
  for (int i = 0; i < count; ++i) parts.push_back(whole.part(i * part.bytes(), part.bytes()));
  return parts;
}

Buffers parts_of(const Buffer& whole, const at::Tensor& tensor, const std::vector<int64_t>& rows,
                 int count) {
  const int64_t all = tensor.dim() == 0 ? 1 : tensor.size(0);
  std::vector<int64_t> sizes = rows;
  if (rows.empty()) {
    OSLO_CHECK(all % count == 0, "all_to_all: ", all, " rows do not divide among ", count,
               " ranks");
    sizes.assign(count, all / count);
  }
  OSLO_CHECK(static_cast<int>(sizes.size()) == count &&
                 std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == all &&
                 *std::min_element(sizes.begin(), sizes.end()) >= 0,
             "all_to_all: the split sizes ", sizes, " are not ", count, " that add up to ", all);
  Buffers parts;
  size_t begin = 0;
  const size_t row = all == 0 ? 0 : whole.bytes() / all;
  for (const int64_t size : sizes) {
    parts.push_back(whole.part(begin, size * row));
    begin += size * row;
  }
  return parts;
}

at::Tensor multiplied(const at::Tensor& tensor, const c10d::ReduceOp& op, bool in_place) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return tensor;
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  OSLO_CHECK(factor != nullptr, "a multiplied sum needs a factor");
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Scalar value = factor->tensor_factor.defined() ? factor->tensor_factor.item()
                                                           : at::Scalar(factor->double_factor);
  return in_place ? tensor.mul_(value) : tensor.mul(value).to(tensor.scalar_type());
}

}  // namespace oslo::shared_memory
