#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace oslo {

/// Tensors from one rank to another over a carrier that knows no tags (NCCL): they come in the
/// order in which they were sent, and are taken in any order. What comes before the wanted one is
/// kept, on the device, until it is taken.
///
/// Any thread may take them.
class UntaggedTensors {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  struct Carrier {
    std::function<int64_t()> next_size;  ///< of the tensor that comes next, in bytes
    std::function<WorkPtr(const at::Tensor& bytes)> receive;  ///< starts to receive that one
    std::function<void(c10d::Work&)> wait;
  };

  /// Fills `bytes` with tensor `number`, counted from 0 in the order of sending; on the current
  /// stream. Each is taken once.
  void take(const at::Tensor& bytes, int64_t number, const Carrier& carrier);

 private:
  struct Kept {
    at::Tensor bytes;
    WorkPtr work;
  };

  std::mutex mutex_;
  int64_t next_ = 0;
  std::map<int64_t, Kept> kept_;  ///< by number
};

}  // namespace oslo
