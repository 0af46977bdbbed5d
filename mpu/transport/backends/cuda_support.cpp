#include "mpu/transport/backends/cuda_support.h"

#include <atomic>

namespace oslo {
namespace {

std::atomic<const CudaSupport*>& registered() {
  static std::atomic<const CudaSupport*> support{nullptr};
  return support;
}

}  // namespace

void set_cuda_support(const CudaSupport* support) {
  registered() = support;
}

const CudaSupport* cuda_support() {
  return registered();
}

}  // namespace oslo
