#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/transport/shared_memory/backend.h"

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

/// What `work` ends with.
inline std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline float first(const at::Tensor& tensor) {
  return tensor.flatten()[0].item<float>();
}

}  // namespace oslo::test
