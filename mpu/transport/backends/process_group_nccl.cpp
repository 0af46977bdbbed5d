#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>

#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <vector>

#include "mpu/transport/backends/cuda_support.h"

// The only file that needs NCCL's header; in liboslo_cpp_cuda.
namespace oslo {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// NCCL whose started operations are still done when its last reference goes, as the other
/// transports' are: LibTorch's own end breaks them off, and what they should have written is lost.
/// A rank that is failing, or whose communicator has, does not wait for what may never be done.
///
/// With TORCH_NCCL_BLOCKING_WAIT=1 the host waits for each operation and is told of its error. A
/// caller that waits at once gets a Work then, too: without one there would be nothing that throws.
class Nccl final : public c10d::ProcessGroupNCCL {
 public:
  using Base = c10d::ProcessGroupNCCL;
  using Base::Base;
  ~Nccl() override {
    try {
      const bool failed = std::uncaught_exceptions() > 0 || getError() != c10d::ErrorType::SUCCESS;
      failed ? abort() : shutdown();
    } catch (const std::exception& error) {
      TORCH_WARN("NCCL did not end in order: ", error.what());
    }
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return Base::allreduce(tensors, with_work(options));
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return Base::broadcast(tensors, with_work(options));
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return Base::_allgather_base(output, input, with_work(options));
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return Base::_reduce_scatter_base(output, input, with_work(options));
  }

 private:
  template <typename Options>
  Options with_work(Options options) const {
    options.asyncOp |= blockingWait_;
    return options;
  }
};

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const CommunicatorGroup& group) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = group.timeout;
  // What NCCL's watchdog calls the group by when an operation fails.
  options->group_name = group.name;
  options->global_ranks_in_group.assign(group.ranks.begin(), group.ranks.end());
  return c10::make_intrusive<Nccl>(store, group.rank, static_cast<int>(group.ranks.size()),
                                   options);
}

std::string device_identity(int number) {
  const auto* properties = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(number));
  std::string text;
  for (const char byte : properties->uuid.bytes) {
    text += c10::str(static_cast<int>(static_cast<unsigned char>(byte)), ".");
  }
  return text;
}

std::string device_name(int number) {
  return at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(number))->name;
}

std::string why_no_device() {
  try {
    c10::cuda::device_count_ensure_non_zero();
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    return reason.substr(0, reason.find('\n'));
  }
  return "";
}

constexpr CudaSupport kSupport{make_nccl, device_identity, device_name, why_no_device};

/// LibTorch registers its own operators in the same way.
[[maybe_unused]] const bool kRegistered = [] {
  set_cuda_support(&kSupport);
  return true;
}();

}  // namespace
}  // namespace oslo
