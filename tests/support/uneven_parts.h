#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "mpu/group/group.h"

namespace oslo::test {

/// All-gather, reduce-scatter and all-to-all over 3 ranks, of parts of any sizes, empty ones and
/// all, along either dimension, real and complex.
inline void expect_moves_uneven_parts(Group& group) {
  const int rank = group.rank();
  for (const auto& sizes : {std::vector<int64_t>{2, 0, 3}, {2, 2, 2}, {0, 4, 0}, {0, 0, 1}}) {
    const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    const int64_t start = std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
    for (const int64_t dim : {0, 1}) {
      std::vector<int64_t> shape{3, 3};
      shape[dim] = total;
      const at::Tensor numbers = at::arange(3 * total, at::kDouble).view(shape);
      for (const at::Tensor& whole : {numbers, at::complex(numbers, numbers + 1)}) {
        const at::Tensor part = whole.narrow(dim, start, sizes[rank]);
        EXPECT_TRUE(at::equal(group.all_gather(part, dim, sizes), whole));
        EXPECT_TRUE(at::equal(group.reduce_scatter(whole * (rank + 1), dim, sizes), part * 6));
        const std::vector<int64_t> columns{1, 2, 0};
        const PartsAlong along{dim, sizes}, across{1 - dim, columns};
        const int64_t before = rank == 0 ? 0 : rank == 1 ? 1 : 3;
        const at::Tensor column = whole.narrow(1 - dim, before, columns[rank]);
        EXPECT_TRUE(at::equal(group.all_to_all(part, across, along), column));
        EXPECT_TRUE(at::equal(group.all_to_all(column, along, across), part));
      }
    }
  }
}

}  // namespace oslo::test
