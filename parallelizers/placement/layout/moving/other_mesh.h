#pragma once

#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// Values of two meshes in one operator, as of a batch over data and tensor ranks and a weight over
/// the tensor ranks alone (OneFlow's global tensors, whose sbp has an entry for each axis of the
/// placement). Where one mesh has all axes of the other, what lies on the smaller one is whole on
/// the axes that it lacks: every rank of them holds the same. So an operator copies it along them,
/// and backward sums its gradient.

/// Whether `wide` has all axes of `narrow`, in any order, and values of both may meet: not those of
/// a model over pipeline stages, of one that computes in other types, computes activations again or
/// is watched (strict mode), as only their own context knows of that.
bool lies_within(const ModelContext& narrow, const ModelContext& wide);

/// The same layout on the mesh of `context`; null where `lies_within` is false, itself where it
/// lies there already.
LayoutPtr on_mesh_of(const LayoutPtr& layout, const ContextPtr& context);

/// The same value; where it cannot, or need not, as it was. What a plan says of a weight's use is
/// of the weight's own mesh, and stays behind: results are reduced as without a plan.
Value on_mesh_of(Value value, const ContextPtr& context);

/// Throws, naming the ranks of both and the fix, where the values of two contexts cannot meet as
/// they are.
void check_one_mesh(const ContextPtr& a, const ContextPtr& b);

}  // namespace oslo
