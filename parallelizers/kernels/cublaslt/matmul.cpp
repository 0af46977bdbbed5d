#include "parallelizers/kernels/cublaslt/matmul.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDADataType.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

#include "mpu/base/error.h"
#include "parallelizers/kernels/column_order.h"
#include "parallelizers/kernels/cublaslt/status.h"

namespace oslo::cublaslt {
namespace {

/// Pointers to the auxiliary matrix are to be aligned so, and steps between its columns to this
/// many elements.
constexpr int64_t kSumAlignment = 16;
constexpr int64_t kSumStep = 8;

std::string text_of(const Product& product) {
  return c10::str(product.name, " of ", product.left.sizes(), " and ", product.right.sizes(), ", ",
                  product.left.scalar_type(), " into ", product.result.scalar_type(), " on ",
                  product.left.device());
}

void check(cublasStatus_t status, const char* call, const Product& product) {
  if (status != CUBLAS_STATUS_SUCCESS) fail_with(status, call, text_of(product));
}

int64_t alignment(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  constexpr int64_t kMost = 256;
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  int64_t alignment = 1;
  while (alignment < kMost && address % (alignment * 2) == 0) alignment *= 2;
  return alignment;
}

cublasLtEpilogue_t epilogue_of(const Product& product, bool swapped) {
  switch (product.beside) {
    case Beside::gelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case Beside::gelu_of_biased:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Beside::gelu_backward:
      return CUBLASLT_EPILOGUE_DGELU;
    case Beside::left_summed_along_rows:
      return swapped ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
    case Beside::nothing:
      break;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

cublasComputeType_t compute_type(at::ScalarType type) {
  using at::Float32Backend, at::Float32Op, at::Float32Precision;
  const bool tf32 = type == at::kFloat &&
                    at::globalContext().float32Precision(Float32Backend::CUDA, Float32Op::MATMUL) ==
                        Float32Precision::TF32;
  return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

bool takes(const Product& product, const ColumnProduct& columns) {
  const auto type = product.left.scalar_type();
  const auto into = product.result.scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  if (type != product.right.scalar_type() || !(half || type == at::kFloat)) return false;
  if (into != type && into != at::kFloat) return false;
  for (const at::Tensor& other : {product.right, product.result, product.bias, product.sum}) {
    if (other.defined() && other.device() != product.left.device()) return false;
  }
  for (const at::Tensor& other : {product.bias, product.sum}) {
    if (other.defined() && other.scalar_type() != into) return false;
  }
  if (product.bias.defined() && !product.bias.is_contiguous()) return false;
  if (!product.sum.defined()) return true;
  const auto sum = transpose_in_columns(product.sum);
  return !columns.swapped && sum && !sum->transposed && sum->step % kSumStep == 0 &&
         alignment(product.sum) >= kSumAlignment;
}

/// cuBLASLt's description of a product. It points to the tensors' memory.
struct Description {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  cublasLtMatmulPreferenceOpaque_t preference;
};

template <typename Value>
void set(cublasLtMatmulDesc_t to, cublasLtMatmulDescAttributes_t attribute, const Value& value,
         const Product& product) {
  check(cublasLtMatmulDescSetAttribute(to, attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute", product);
}

template <typename Value>
void prefer(cublasLtMatmulPreference_t to, cublasLtMatmulPreferenceAttributes_t attribute,
            Value value, const Product& product) {
  check(cublasLtMatmulPreferenceSetAttribute(to, attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute", product);
}

void describe(cublasLtMatrixLayout_t layout, const ColumnMatrix& matrix, at::ScalarType type,
              const Product& product) {
  check(cublasLtMatrixLayoutInit(layout, at::cuda::ScalarTypeToCudaDataType(type), matrix.rows,
                                 matrix.columns, matrix.step),
        "cublasLtMatrixLayoutInit", product);
}

void describe(Description& all, const Product& product, const ColumnProduct& columns) {
  const auto type = product.left.scalar_type();
  check(cublasLtMatmulDescInit(&all.product, compute_type(type), CUDA_R_32F),
        "cublasLtMatmulDescInit", product);
  const auto turn = [](const ColumnMatrix& m) { return m.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(&all.product, CUBLASLT_MATMUL_DESC_TRANSA, turn(columns.A), product);
  set(&all.product, CUBLASLT_MATMUL_DESC_TRANSB, turn(columns.B), product);
  set(&all.product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(product, columns.swapped), product);
  if (product.bias.defined()) {
    set(&all.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias.data_ptr(), product);
  }
  if (product.sum.defined()) {
    set(&all.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.sum.data_ptr(), product);
    const int64_t step = transpose_in_columns(product.sum)->step;
    set(&all.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, step, product);
  }
  describe(&all.a, columns.A, type, product);
  describe(&all.b, columns.B, type, product);
  describe(&all.d, columns.D, product.result.scalar_type(), product);
}

/// None where no algorithm computes it.
std::optional<cublasLtMatmulAlgo_t> choose(Description& all, const Product& product,
                                           const ColumnProduct& columns) {
  check(cublasLtMatmulPreferenceInit(&all.preference), "cublasLtMatmulPreferenceInit", product);
  auto* const preference = &all.preference;
  const auto aligned = [&](cublasLtMatmulPreferenceAttributes_t which, const at::Tensor& tensor) {
    prefer(preference, which, static_cast<uint32_t>(alignment(tensor)), product);
  };
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         static_cast<uint64_t>(at::cuda::getCUDABlasLtWorkspaceSize()), product);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, columns.a);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, columns.b);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, product.result);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, product.result);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(at::cuda::getCurrentCUDABlasLtHandle(), &all.product, &all.a,
                                     &all.b, &all.d, &all.d, preference, 1, &best, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
  check(status, "cublasLtMatmulAlgoGetHeuristic", product);
  return found > 0 ? std::optional(best.algo) : std::nullopt;
}

}  // namespace

bool Matmuls::run(const Product& product) {
  const auto columns = in_columns(product.left, product.right, product.result);
  if (!columns || !takes(product, *columns)) return false;
  const c10::DeviceGuard guard(product.left.device());
  const auto& [a, b, A, B, D, swapped] = *columns;
  const int64_t depth = A.transposed ? A.rows : A.columns;
  const auto type = product.left.scalar_type();
  const Key key{product.left.get_device(),
                static_cast<int64_t>(type),
                static_cast<int64_t>(product.result.scalar_type()),
                compute_type(type),
                epilogue_of(product, swapped),
                product.adds,
                D.rows,
                D.columns,
                depth,
                A.transposed,
                B.transposed,
                A.step,
                B.step,
                D.step,
                product.sum.defined() ? transpose_in_columns(product.sum)->step : 0,
                alignment(a),
                alignment(b),
                alignment(product.result),
                alignment(product.bias),
                alignment(product.sum)};
  Description all;
  describe(all, product, *columns);
  const Choice choice = chosen_.get(key, [&] { return choose(all, product, *columns); });
  if (!choice) return false;
  const float one = 1, beta = product.adds ? 1 : 0;
  void* const into = product.result.data_ptr();
  // LibTorch keeps a workspace for each stream of a thread's handle, and gives it back before a
  // graph is captured.
  void* const workspace = at::cuda::getCUDABlasLtWorkspace();
  check(cublasLtMatmul(at::cuda::getCurrentCUDABlasLtHandle(), &all.product, &one,
                       a.const_data_ptr(), &all.a, b.const_data_ptr(), &all.b, &beta, into, &all.d,
                       into, &all.d, &*choice, workspace, at::cuda::getCUDABlasLtWorkspaceSize(),
                       c10::cuda::getCurrentCUDAStream()),
        "cublasLtMatmul", product);
  return true;
}

}  // namespace oslo::cublaslt
