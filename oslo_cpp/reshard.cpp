#include "mpu/agreement.h"
#include "mpu/error.h"
#include "oslo_cpp/initialize.h"
#include "oslo_cpp/parallel_model.h"

namespace oslo {

void ParallelModel::reshard(const Config& config) {
  reshard(config, InitializeOptions());
}

void ParallelModel::reshard(const Config& config, const InitializeOptions& options) {
  const World world = mpu().world();
  agree_on_success(world, "reshard", [&] {
    const ParallelSizes sizes = config.resolve(world.size());
    OSLO_CHECK(sizes.enabled, "reshard: the config says \"enable\": false; use deparallelize()");
    if (!options.axes.empty()) MpuOptions().axes(options.axes).grid(world.size());
  });
  deparallelize();
  InitializeOptions there = options;
  there.world = world;
  take_over(initialize(module(), config, there));
}

}  // namespace oslo
