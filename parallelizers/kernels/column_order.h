#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace oslo {

/// A matrix as it lies in memory for BLAS, whose columns lie one behind the other. `transposed`:
/// what is meant is its transpose.
struct ColumnMatrix {
  int64_t rows, columns;
  int64_t step;  ///< elements from a column to the next (BLAS's leading dimension)
  bool transposed;

  bool operator==(const ColumnMatrix& other) const = default;
};

/// The transpose of `matrix`: in columns it lies as LibTorch's matrices lie in rows. None where
/// neither the rows nor the columns of `matrix` are without gaps.
std::optional<ColumnMatrix> transpose_in_columns(const at::Tensor& matrix);

/// A product of row matrices, result = left right, as one of column matrices: D = A B, where D^T is
/// the result, or D is it (`swapped`).
struct ColumnProduct {
  at::Tensor a, b;  ///< whose memory they are
  ColumnMatrix A, B, D;
  /// The result lies in columns, so A is the left operand, not the right one.
  bool swapped;
};

/// None where one of them has gaps, or the product nothing to compute.
std::optional<ColumnProduct> in_columns(const at::Tensor& left, const at::Tensor& right,
                                        const at::Tensor& result);

}  // namespace oslo
