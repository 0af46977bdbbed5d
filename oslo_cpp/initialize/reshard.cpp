#include <vector>

#include "checkpoint/resume/state_transfer.h"
#include "mpu/base/error.h"
#include "mpu/world/agreement.h"
#include "oslo_cpp/initialize/initialize.h"
#include "oslo_cpp/model/parallel_model.h"

namespace oslo {
namespace {

void give(std::vector<StateTransfer>& states) {
  for (StateTransfer& own : states) own.give();
}

}  // namespace

void ParallelModel::deparallelize(const ReshardOptions& options) {
  std::vector<StateTransfer> states = make_ordinary(options);
  give(states);
}

void ParallelModel::reshard(const Config& config) {
  reshard(config, InitializeOptions());
}

void ParallelModel::reshard(const Config& config, const ReshardOptions& options) {
  reshard(config, InitializeOptions(), options);
}

void ParallelModel::reshard(const Config& config, const InitializeOptions& how,
                            const ReshardOptions& options) {
  const World world = mpu().world();
  agree_on_success(world, "reshard", [&] {
    const ParallelSizes sizes = config.resolve(world.size());
    OSLO_CHECK(sizes.enabled, "reshard: the config says \"enable\": false; use deparallelize()");
    if (!how.axes.empty()) MpuOptions().axes(how.axes).grid(world.size());
  });
  std::vector<StateTransfer> states = make_ordinary(options);
  InitializeOptions there = how;
  there.world = world;
  try {
    take_over(initialize(module(), config, there));
  } catch (const Error&) {  // on every rank, and the model is an ordinary one
    give(states);
    throw;
  }
  give(states);
}

}  // namespace oslo
