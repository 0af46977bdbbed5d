#pragma once

#include <algorithm>
#include <cstdint>

namespace oslo {

/// A rank's part of `rows` rows, as tensor_split has it: the first ranks have one more where they
/// do not divide.
struct RankRows {
  RankRows(int64_t rows, int64_t rank, int64_t ranks)
      : start(rank * (rows / ranks) + std::min(rank, rows % ranks)),
        length(rows / ranks + (rank < rows % ranks ? 1 : 0)) {}

  int64_t start, length;
};

}  // namespace oslo
