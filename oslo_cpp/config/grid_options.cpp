#include "oslo_cpp/config/grid_options.h"

#include "mpu/base/error.h"

namespace oslo {

MpuOptions grid_options(const ParallelSizes& sizes, const Config& config,
                        const std::vector<Axis>& axes) {
  if (axes.empty() || !sizes.enabled) {
    return MpuOptions()
        .tensor_parallel_size(sizes.tensor)
        .pipeline_parallel_size(sizes.pipeline)
        .data_parallel_size(sizes.data)
        .rank_order(sizes.rank_order);
  }
  const ConfigValues& values = config.values();
  const bool sized = sizes.tensor > 1 || sizes.pipeline > 1 || values.data_parallel_size ||
                     sizes.rank_order != RankOrder::pp_dp_tp;
  OSLO_CHECK(!sized, "initialize: the grid is given twice, by InitializeOptions::axes (",
             factors(axes), ") and by the config's sizes or rank_order; use one of the two");
  return MpuOptions().axes(axes);
}

}  // namespace oslo
