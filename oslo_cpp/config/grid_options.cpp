#include "oslo_cpp/config/grid_options.h"

#include <cmath>
#include <utility>

#include "mpu/base/error.h"

namespace oslo {
namespace {

/// Ranks of one sequence lie beside each other, those of one of its parts nearest.
std::vector<Axis> axes_of(const ParallelSizes& sizes) {
  std::vector<Axis> axes{{"pipeline", sizes.pipeline}, {"data", sizes.data}};
  if (sizes.rank_order == RankOrder::dp_pp_tp) std::swap(axes[0], axes[1]);
  if (sizes.context > 1) axes.push_back({"context", sizes.context});
  if (sizes.over_grid() && sizes.tensor_mode == "3d") {
    const auto side = static_cast<int>(std::lround(std::cbrt(sizes.tensor)));
    // The input is the innermost: what it cuts of a dimension inside another axis is gathered
    // first.
    for (const char* axis : {"output", "weight", "input"}) axes.push_back({axis, side});
  } else if (sizes.over_grid()) {
    const auto side = static_cast<int>(std::lround(std::sqrt(sizes.tensor / sizes.depth)));
    if (sizes.depth > 1) axes.push_back({"depth", sizes.depth});
    axes.push_back({"row", side});
    axes.push_back({"column", side});
  } else if (sizes.tensor > 1) {
    axes.push_back({"tensor", sizes.tensor});
  }
  return axes;
}

}  // namespace

MpuOptions grid_options(const ParallelSizes& sizes, const Config& config,
                        const std::vector<Axis>& axes) {
  if (axes.empty() || !sizes.enabled) {
    if (sizes.context > 1 || sizes.over_grid()) return MpuOptions().axes(axes_of(sizes));
    return MpuOptions()
        .tensor_parallel_size(sizes.tensor)
        .pipeline_parallel_size(sizes.pipeline)
        .data_parallel_size(sizes.data)
        .rank_order(sizes.rank_order);
  }
  const ConfigValues& values = config.values();
  const bool sized = sizes.tensor > 1 || sizes.pipeline > 1 || sizes.context > 1 ||
                     values.data_parallel_size || sizes.rank_order != RankOrder::pp_dp_tp;
  OSLO_CHECK(!sized, "initialize: the grid is given twice, by InitializeOptions::axes (",
             factors(axes), ") and by the config's sizes or rank_order; use one of the two");
  return MpuOptions().axes(axes);
}

}  // namespace oslo
