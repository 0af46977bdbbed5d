#include "checkpoint/formats/tensors/tensor_stream.h"

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include "mpu/base/error.h"

namespace oslo {

uint64_t TensorOutline::bytes() const {
  return static_cast<uint64_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype);
}

at::Tensor TensorStream::take(const TensorOutline& outline) const {
  at::Tensor tensor = give(outline.name);
  OSLO_CHECK(tensor.sizes() == outline.shape && tensor.scalar_type() == outline.dtype,
             "the tensor '", outline.name, "' is ", tensor.scalar_type(), " ", tensor.sizes(),
             ", the file says ", outline.dtype, " ", c10::IntArrayRef(outline.shape));
  return tensor;
}

}  // namespace oslo
