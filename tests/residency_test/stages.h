#pragma once

#include <string>
#include <utility>

#include "mpu/grid/mpu.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/residency/shape_call.h"

namespace oslo::test {

/// The mesh of one rank of a pipeline, without tensor parallelism.
inline std::shared_ptr<Mesh> mesh_of_stages(const MPU& mpu) {
  auto mesh = std::make_shared<Mesh>(std::vector{mpu.tensor_group()});
  mesh->stage_ranks =
      StageRanks::one_each(mpu.pipeline_group()->size(), mpu.pipeline_group()->rank());
  mesh->shapes = std::make_shared<KnownShapes>();
  return mesh;
}

inline StageSet on(int stage) {
  return StageSet::of(stage);
}

/// Gives a parameter or buffer to these stages.
inline void place(const at::Tensor& tensor, const MeshPtr& mesh, StageSet stages,
                  const std::string& name = "a parameter") {
  mark_parameter(tensor, std::make_shared<Layout>(mesh, stages), name);
}

/// What the body sees on each of the ranks, a thread a stage.
template <typename Body>
void on_stages(int size, const Body& body) {
  run_as_threads(size, [&](World world) {
    const MPU mpu(std::move(world), MpuOptions().pipeline_parallel_size(size));
    body(mpu, mesh_of_stages(mpu));
  });
}

}  // namespace oslo::test
