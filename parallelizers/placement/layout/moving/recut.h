#pragma once

#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// Whether `recut_axis` can bring the value's dimension, cut by `axis` alone, into the pieces of
/// `to`. Not where either cut comes from a parameter: the planner is told of its wish, and cuts the
/// parameter otherwise.
bool can_recut(const Value& value, int axis, int64_t dim, const Cut& to);

/// The value with its dimension cut otherwise on the same axis: what has another owner then moves,
/// and nothing else (the borders of a shifted sequence); nothing where all have the same owners.
/// One all-to-all each way.
Value recut_axis(Value value, int axis, const CutPtr& to);

/// The value, which `axis` cuts along one dimension, cut along another one instead, `dim`, inside
/// what cuts that already. One all-to-all each way.
Value move_cut(Value value, int axis, int64_t dim, const CutPtr& cut);

}  // namespace oslo
