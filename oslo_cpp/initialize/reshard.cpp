#include <vector>

#include "checkpoint/resume/state_transfer.h"
#include "mpu/base/error.h"
#include "mpu/world/agreement.h"
#include "oslo_cpp/config/engine_keys.h"
#include "oslo_cpp/initialize/initialize.h"
#include "oslo_cpp/initialize/initialize_again.h"
#include "oslo_cpp/model/parallel_model.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/plan/apply/wide_gradients.h"

namespace oslo {
namespace {

void give(std::vector<StateTransfer>& states) {
  for (StateTransfer& own : states) own.give();
}

AuthorTypes types_of(const ParallelModel& model) {
  return author_types(context_of(model.mpu().tensor_mesh()));
}

/// In the types that its author had it in.
void leave_ordinary(const ParallelModel& model, const AuthorTypes& types) {
  give_types_back(types);
  narrow_gradients(ModelView(model.module()));
}

}  // namespace

void ParallelModel::deparallelize(const ReshardOptions& options) {
  const AuthorTypes types = types_of(*this);
  std::vector<StateTransfer> states = make_ordinary(options);
  leave_ordinary(*this, types);
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
    check_no_engine_keys(config.values().engine);
    OSLO_CHECK(sizes.enabled, "reshard: the config says \"enable\": false; use deparallelize()");
    if (!how.axes.empty()) MpuOptions().axes(how.axes).grid(world.size());
  });
  const AuthorTypes types = types_of(*this);
  std::vector<StateTransfer> states = make_ordinary(options);
  InitializeOptions there = how;
  there.world = world;
  there.class_stages = class_stages();
  const ConfigValues& values = config.values();
  try {
    if (!values.master_weights) give_types_back(types);
    if (values.reduce_dtype != "float32") narrow_gradients(ModelView(module()));
    take_over(
        initialize_again(module(), config, there, values.master_weights ? types : AuthorTypes()));
  } catch (const Error&) {  // on every rank, and the model is an ordinary one
    leave_ordinary(*this, types);
    give(states);
    throw;
  }
  give(states);
}

}  // namespace oslo
