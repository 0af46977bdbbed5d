#include "parallelizers/placement/rules/matrix/position_runs.h"

namespace oslo {
namespace {

/// Head and tail, each of which a border may have cut once more.
constexpr size_t kMostRuns = 4;

}  // namespace

std::vector<PositionRun> runs_of(const at::Tensor& positions) {
  const int64_t count = positions.numel();
  const auto* at = positions.const_data_ptr<int64_t>();
  std::vector<PositionRun> runs;
  for (int64_t i = 0; i < count; ++i) {
    const bool follows = i > 0 && at[i] == at[i - 1] + 1;
    if (!follows) runs.push_back({i, 0});
    ++runs.back().length;
  }
  if (runs.size() > kMostRuns) return {{0, count}};
  return runs;
}

}  // namespace oslo
