#pragma once

#include <ATen/core/Tensor.h>
#include <cublasLt.h>

#include <array>
#include <optional>

#include "parallelizers/kernels/remembered.h"

namespace oslo::cublaslt {

/// What is computed beside a product, in cuBLASLt's word its epilogue.
enum class Beside {
  nothing,
  gelu,                    ///< the result is the GeLU, `sum` gets what it is taken of
  gelu_of_biased,          ///< the same, after `bias` is added
  gelu_backward,           ///< the result is multiplied by the GeLU's derivative at `sum`
  left_summed_along_rows,  ///< `bias` (m) gets left (m, k) summed over k
};

/// result (m, n) = left (m, k) right (k, n).
struct Product {
  const char* name;  ///< for errors
  at::Tensor left, right, result;
  bool adds = false;  ///< to what `result` holds
  Beside beside = Beside::nothing;
  at::Tensor bias = {};  ///< (n); (m) where the left operand is summed
  at::Tensor sum = {};   ///< (m, n), in the result's order
};

/// Runs products by cuBLASLt, and keeps which algorithm its heuristics chose for a shape: they take
/// longer than the start of a kernel. One object serves all devices and threads.
class Matmuls {
 public:
  /// False, and nothing was written, where cuBLASLt has no algorithm for the product, or the
  /// matrices do not lie as it takes them. On the current stream of the tensors' device. Throws
  /// what cuBLASLt reports.
  bool run(const Product& product);

 private:
  /// All that the choice of an algorithm depends on.
  using Key = std::array<int64_t, 24>;
  using Choice = std::optional<cublasLtMatmulAlgo_t>;

  Remembered<Key, Choice> chosen_;
};

}  // namespace oslo::cublaslt
