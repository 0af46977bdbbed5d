#include "parallelizers/libtorch/gradient_type.h"

#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace oslo {

void unset_gradient_type(const at::Tensor& parameter) {
  // LibTorch compares a gradient that is there with the type that is set.
  const at::Tensor gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
  parameter.set_grad_dtype(parameter.scalar_type());  // tells its accumulator, too
  parameter.mutable_grad() = gradient;
  if (auto* const meta = torch::autograd::impl::get_autograd_meta(parameter)) {
    meta->grad_dtype_.reset();  // what is set would stay when the parameter changes its type
  }
}

}  // namespace oslo
