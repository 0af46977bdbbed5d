#include "parallelizers/kernels/column_order.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

// Products of LibTorch's row matrices as the products of column matrices that BLAS takes: computed
// from the memory alone, as BLAS would.
namespace {

using oslo::ColumnMatrix;

/// The matrix that BLAS sees at the memory of `tensor`.
at::Tensor seen(const at::Tensor& tensor, const ColumnMatrix& matrix) {
  const at::Tensor stored =
      tensor.as_strided({matrix.rows, matrix.columns}, {1, matrix.step}, tensor.storage_offset());
  return matrix.transposed ? stored.t() : stored;
}

enum class Lies { in_rows, in_columns, in_rows_with_gaps, in_columns_with_gaps };
constexpr Lies kAll[] = {Lies::in_rows, Lies::in_columns, Lies::in_rows_with_gaps,
                         Lies::in_columns_with_gaps};

at::Tensor matrix(int64_t rows, int64_t columns, Lies lies) {
  switch (lies) {
    case Lies::in_rows:
      return at::randn({rows, columns});
    case Lies::in_columns:
      return at::randn({columns, rows}).t();
    case Lies::in_rows_with_gaps:
      return at::randn({rows, columns + 3}).slice(1, 2, 2 + columns);
    case Lies::in_columns_with_gaps:
      return at::randn({columns, rows + 3}).slice(1, 2, 2 + rows).t();
  }
  return {};
}

void expect_product(int64_t m, int64_t k, int64_t n, Lies a, Lies b, Lies c) {
  const at::Tensor left = matrix(m, k, a), right = matrix(k, n, b), result = matrix(m, n, c);
  const auto columns = oslo::in_columns(left, right, result);
  ASSERT_TRUE(columns.has_value());
  for (const ColumnMatrix* each : {&columns->A, &columns->B, &columns->D}) {
    EXPECT_GE(each->step, each->rows);
  }
  seen(result, columns->D).copy_(seen(columns->a, columns->A).mm(seen(columns->b, columns->B)));
  EXPECT_TRUE(at::allclose(result, left.mm(right), 1e-5, 1e-6));
  const bool left_first = columns->a.data_ptr() == left.data_ptr();
  EXPECT_EQ(columns->swapped, left_first);
}

TEST(ColumnOrder, AProductOfAnyMatricesIsTheSame) {
  for (const Lies left : kAll) {
    for (const Lies right : kAll) {
      for (const Lies result : kAll) expect_product(4, 5, 3, left, right, result);
    }
  }
}

/// The stride of a dimension of one element may be anything.
TEST(ColumnOrder, RowsAndColumnsOfOneElement) {
  for (const int64_t m : {1, 4}) {
    for (const int64_t k : {1, 5}) {
      for (const int64_t n : {1, 3}) {
        for (const Lies lies : kAll) expect_product(m, k, n, lies, lies, lies);
      }
    }
  }
  const at::Tensor odd = at::randn({6}).as_strided({1, 6}, {17, 1});
  EXPECT_EQ(oslo::transpose_in_columns(odd), (ColumnMatrix{6, 1, 6, false}));
}

TEST(ColumnOrder, GapsBetweenElementsAreRefused) {
  const at::Tensor every_other = at::randn({4, 10}).slice(1, 0, 10, 2), plain = at::randn({5, 3});
  EXPECT_FALSE(oslo::transpose_in_columns(every_other).has_value());
  EXPECT_FALSE(oslo::in_columns(every_other, plain, at::empty({4, 3})).has_value());
  EXPECT_FALSE(oslo::in_columns(at::randn({4, 5}), plain, at::empty({4, 6}).slice(1, 0, 6, 2)));
  EXPECT_FALSE(oslo::transpose_in_columns(at::randn({3}).expand({4, 3})).has_value())
      << "rows that lie on each other";
}

TEST(ColumnOrder, NothingToComputeIsRefused) {
  EXPECT_FALSE(oslo::in_columns(at::empty({4, 0}), at::empty({0, 3}), at::empty({4, 3})));
  EXPECT_FALSE(oslo::in_columns(at::empty({0, 5}), at::randn({5, 3}), at::empty({0, 3})));
}

}  // namespace
