#include "parallelizers/kernels/cublaslt/status.h"

#include "mpu/base/error.h"

namespace oslo::cublaslt {

const char* advice(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED:
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the device's memory is probably out: take a smaller batch, or leave memory outside "
             "LibTorch's cache";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "the GPU is older than this cuBLAS supports: set \"kernel_fusion\": false";
    case CUBLAS_STATUS_EXECUTION_FAILED:
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "an earlier operation on this device probably failed: run with CUDA_LAUNCH_BLOCKING=1 "
             "to see which";
    case CUBLAS_STATUS_INVALID_VALUE:
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "this cuBLAS does not take the product as it is asked: set \"kernel_fusion\": false, "
             "and report these shapes";
    default:
      return "set \"kernel_fusion\": false to compute it by LibTorch's operators";
  }
}

void fail_with(cublasStatus_t status, const char* call, const std::string& what) {
  fail("cuBLASLt: ", what, ": ", call, " failed: ", cublasLtGetStatusName(status), " (",
       cublasLtGetStatusString(status), "); ", advice(status));
}

}  // namespace oslo::cublaslt
