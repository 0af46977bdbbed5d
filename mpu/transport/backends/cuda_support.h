#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace oslo {

/// The group for which a communicator is made.
struct CommunicatorGroup {
  std::string name;
  std::vector<int> ranks;  ///< of the world
  int rank;                ///< this one's number in `ranks`
  std::chrono::milliseconds timeout;
};

/// What needs CUDA's headers. It lies in a library of its own, liboslo_cpp_cuda, so that this one
/// is the same with and without CUDA (as LibTorch is two: libtorch_cpu, libtorch_cuda).
struct CudaSupport {
  /// Makes an NCCL communicator, on first use, for the device that is current here. Two of one
  /// group need stores of their own.
  c10::intrusive_ptr<c10d::Backend> (*make_nccl)(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const CommunicatorGroup& group);
  /// A text for the device of that number, which no other one of any host has (its UUID; each part
  /// that MIG makes of one has its own).
  std::string (*device_identity)(int number);
  /// What its maker calls it: "NVIDIA H100 80GB HBM3".
  std::string (*device_name)(int number);
  /// Why no device can be used: no driver, one too old, none plugged in. Empty where one can.
  std::string (*why_no_device)();
};

/// What liboslo_cpp_cuda says while it is loaded, before anybody asks.
void set_cuda_support(const CudaSupport* support);

/// Null where liboslo_cpp_cuda is not loaded.
const CudaSupport* cuda_support();

}  // namespace oslo
