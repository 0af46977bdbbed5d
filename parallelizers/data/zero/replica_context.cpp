#include "parallelizers/data/zero/replica_context.h"

#include <utility>
#include <vector>

#include "mpu/grid/group_copies.h"

namespace oslo {
namespace {

/// Copies of a part draw alike what is written into it.
RandomDraws draws_of(const ModelContext& tensor, const Group& replicas) {
  RandomDraws draws = tensor.mesh().random();
  const std::shared_ptr<Group> copies = copies_of(replicas);
  if (!copies || draws.mode != RandomMode::per_rank || !draws.sharded.defined()) return draws;
  at::Tensor state = draws.sharded.get_state();
  copies->broadcast(state);
  draws.sharded = draws.sharded.clone();
  draws.sharded.set_state(state);
  return draws;
}

}  // namespace

std::shared_ptr<ModelContext> replica_context(const ModelContext& tensor,
                                              const std::shared_ptr<Group>& replicas) {
  std::vector<std::shared_ptr<Group>> axes;
  for (int axis = 0; axis < tensor.mesh().axes(); ++axis) axes.push_back(tensor.mesh().axis(axis));
  axes.push_back(replicas);
  const auto context =
      context_of(std::make_shared<const Mesh>(std::move(axes), draws_of(tensor, *replicas)));
  context->replica_axis = context->mesh().axes() - 1;
  return context;
}

}  // namespace oslo
