#include "parallelizers/kernels/column_order.h"

#include <ATen/ATen.h>

namespace oslo {

std::optional<ColumnMatrix> transpose_in_columns(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  const int64_t down = matrix.stride(0), along = matrix.stride(1);
  // The stride of a dimension of one element says nothing.
  const auto packed = [](int64_t size, int64_t stride) { return size <= 1 || stride == 1; };
  const auto apart = [](int64_t size, int64_t stride, int64_t line) {
    return size <= 1 || stride >= line;
  };
  if (packed(columns, along) && apart(rows, down, columns)) {
    return ColumnMatrix{columns, rows, rows <= 1 ? std::max<int64_t>(columns, 1) : down, false};
  }
  if (packed(rows, down) && apart(columns, along, rows)) {
    return ColumnMatrix{rows, columns, columns <= 1 ? std::max<int64_t>(rows, 1) : along, true};
  }
  return std::nullopt;
}

std::optional<ColumnProduct> in_columns(const at::Tensor& left, const at::Tensor& right,
                                        const at::Tensor& result) {
  if (left.numel() == 0 || right.numel() == 0) return std::nullopt;
  const auto D = transpose_in_columns(result);
  if (!D) return std::nullopt;
  // The transpose of a product is that of the transposes, the other way around.
  const at::Tensor a = D->transposed ? left.t() : right;
  const at::Tensor b = D->transposed ? right.t() : left;
  const auto A = transpose_in_columns(a), B = transpose_in_columns(b);
  if (!A || !B) return std::nullopt;
  return ColumnProduct{a, b, *A, *B, {D->rows, D->columns, D->step, false}, D->transposed};
}

}  // namespace oslo
