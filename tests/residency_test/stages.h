#pragma once

#include <string>
#include <utility>

#include "mpu/grid/mpu.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/elsewhere/stage_residence.h"

namespace oslo::test {

/// What values of one rank of a pipeline share, without tensor parallelism.
inline ContextPtr context_of_stages(const MPU& mpu) {
  auto context = context_of(std::make_shared<const Mesh>(std::vector{mpu.tensor_group()}));
  context->set_residence(std::make_shared<StageResidence>(
      StageRanks::one_each(mpu.pipeline_group()->size(), mpu.pipeline_group()->rank())));
  return context;
}

inline StageSet on(int stage) {
  return StageSet::of(stage);
}

/// Gives a parameter or buffer to these stages.
inline void place(const at::Tensor& tensor, const ContextPtr& context, StageSet stages,
                  const std::string& name = "a parameter") {
  mark_parameter(tensor, std::make_shared<Layout>(context, stages), name);
}

/// What the body sees on each of the ranks, a thread a stage.
template <typename Body>
void on_stages(int size, const Body& body) {
  run_as_threads(size, [&](World world) {
    const MPU mpu(std::move(world), MpuOptions().pipeline_parallel_size(size));
    body(mpu, context_of_stages(mpu));
  });
}

}  // namespace oslo::test
