#include "mpu/transport/shared_memory/collective/buffer.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "mpu/base/error.h"
#include "mpu/base/parts.h"

namespace oslo::shared_memory {
namespace {

bool in_one_piece(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

}  // namespace

void check_movable(const at::Tensor& tensor) {
  OSLO_CHECK(tensor.defined(), "shared memory collectives got an undefined tensor");
  OSLO_CHECK(tensor.device().is_cpu() && tensor.layout() == at::kStrided,
             "shared memory collectives move dense CPU tensors, this one is ", tensor.layout(),
             " on ", tensor.device());
}

Buffer Buffer::input(const at::Tensor& tensor) {
  check_movable(tensor);
  Buffer buffer;
  buffer.tensor_ = tensor;
  if (!in_one_piece(tensor)) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    buffer.tensor_ = parts::plain(tensor);
  }
  buffer.data_ = static_cast<std::byte*>(const_cast<void*>(buffer.tensor_.const_data_ptr()));
  buffer.bytes_ = tensor.nbytes();
  return buffer;
}

Buffer Buffer::output(const at::Tensor& tensor, bool with_content) {
  check_movable(tensor);
  OSLO_CHECK(!tensor._is_zerotensor(), "a collective writes to a tensor of shape ", tensor.sizes(),
             " that is zeros without memory, as the gradient of sgn is; give it a clone()");
  Buffer buffer;
  buffer.tensor_ = tensor;
  const at::Tensor* memory = &tensor;
  if (!in_one_piece(tensor)) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    buffer.copy_ = at::empty(tensor.sizes(), tensor.options());
    if (with_content) buffer.copy_.copy_(tensor);
    memory = &buffer.copy_;
  }
  buffer.data_ = static_cast<std::byte*>(memory->mutable_data_ptr());
  buffer.bytes_ = tensor.nbytes();
  return buffer;
}

Buffer Buffer::part(size_t begin, size_t bytes) const {
  Buffer part;
  part.tensor_ = is_copy() ? copy_ : tensor_;
  part.data_ = data_ + begin;
  part.bytes_ = bytes;
  return part;
}

void Buffer::write_back() const {
  const at::AutoDispatchBelowADInplaceOrView guard;
  tensor_.copy_(copy_);
}

}  // namespace oslo::shared_memory
