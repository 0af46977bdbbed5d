#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>

#include <exception>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "mpu/transport/cuda_support.h"

// The only file that needs NCCL's header; in liboslo_cpp_cuda.
namespace oslo {
namespace {

/// NCCL whose started operations are still done when its last reference goes, as the other
/// transports' are: LibTorch's own end breaks them off, and what they should have written is lost.
/// A rank that is failing does not wait for what may never be done.
class Nccl final : public c10d::ProcessGroupNCCL {
 public:
  using c10d::ProcessGroupNCCL::ProcessGroupNCCL;
  ~Nccl() override {
    try {
      std::uncaught_exceptions() > 0 ? abort() : shutdown();
    } catch (const std::exception& error) {
      TORCH_WARN("NCCL did not end in order: ", error.what());
    }
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

std::string why_no_device() {
  try {
    c10::cuda::device_count_ensure_non_zero();
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    return reason.substr(0, reason.find('\n'));
  }
  return "";
}

constexpr CudaSupport kSupport{make_nccl, device_identity, why_no_device};

/// LibTorch registers its own operators in the same way.
[[maybe_unused]] const bool kRegistered = [] {
  set_cuda_support(&kSupport);
  return true;
}();

}  // namespace
}  // namespace oslo
