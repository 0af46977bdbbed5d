#include "parallelizers/data/zero/replica_context.h"

#include <utility>
#include <vector>

namespace oslo {

std::shared_ptr<ModelContext> replica_context(const ModelContext& tensor,
                                              const std::shared_ptr<Group>& replicas) {
  std::vector<std::shared_ptr<Group>> axes;
  for (int axis = 0; axis < tensor.mesh().axes(); ++axis) axes.push_back(tensor.mesh().axis(axis));
  axes.push_back(replicas);
  const auto context =
      context_of(std::make_shared<const Mesh>(std::move(axes), tensor.mesh().random()));
  context->replica_axis = context->mesh().axes() - 1;
  return context;
}

}  // namespace oslo
