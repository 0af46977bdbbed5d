#include "parallelizers/placement/layout/context.h"

namespace oslo {

std::shared_ptr<ModelContext> context_of(const MeshPtr& mesh) {
  // The mesh owns it, so that a pointer to it keeps the mesh and its groups alive.
  return {mesh, &mesh->companion().get<ModelContext>(*mesh)};
}

bool over_same_ranks(const ModelContext& a, const ModelContext& b) {
  const Mesh &first = a.mesh(), &second = b.mesh();
  if (a.stage_ranks != b.stage_ranks || !a.shapes != !b.shapes || first.axes() != second.axes()) {
    return false;
  }
  if (!a.ended.empty() || !b.ended.empty()) return false;
  for (int axis = 0; axis < first.axes(); ++axis) {
    if (first.axis(axis)->ranks() != second.axis(axis)->ranks()) return false;
  }
  return true;
}

}  // namespace oslo
