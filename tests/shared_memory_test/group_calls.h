#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "mpu/transport/shared_memory/backend.h"
#include "tests/support/error_of.h"

namespace oslo::test {

using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

inline WorkPointer start_all_reduce(c10d::Backend& group, const at::Tensor& tensor,
                                    bool caller_waits = false) {
  Tensors tensors{tensor};
  c10d::AllreduceOptions options;
  options.asyncOp = !caller_waits;
  return group.allreduce(tensors, options);
}

inline void barrier(c10d::Backend& group) {
  group.barrier({})->wait();
}

inline float first(const at::Tensor& tensor) {
  return tensor.flatten()[0].item<float>();
}

}  // namespace oslo::test
