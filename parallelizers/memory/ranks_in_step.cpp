#include "parallelizers/memory/ranks_in_step.h"

#include <utility>

#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/layout/sharded_weight.h"

namespace oslo {
namespace {

/// Whether a weight among these is there without the other replicas.
bool read_alone(c10::ArrayRef<c10::IValue> arguments) {
  bool alone = false;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    const Mark* const mark = mark_of(tensor);
    alone |= mark != nullptr && mark->sharded && !mark->sharded->needs_replicas();
  });
  return alone;
}

}  // namespace

RanksInStep::RanksInStep(c10::ArrayRef<c10::IValue> arguments) : context_(context_of(arguments)) {
  const int without = read_alone(arguments) ? context_->replica_axis : -1;
  const Mesh& mesh = context_->mesh();
  for (int axis = 0; axis < mesh.axes(); ++axis) {
    if (axis != without && mesh.axis(axis)->size() > 1) groups_.push_back(mesh.axis(axis));
  }
}

at::Tensor RanksInStep::all_reduce(at::Tensor values, Reduction reduction) const {
  for (const auto& group : groups_) values = group->all_reduce(values, reduction);
  return values;
}

}  // namespace oslo
