#pragma once

#include <string>
#include <vector>

#include "mpu/rank_order.h"

namespace oslo {

/// The sizes of a mesh: how many ranks each kind of parallelism has.
struct RankGrid {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  RankOrder order = RankOrder::pp_dp_tp;

  int size() const { return data * tensor * pipeline; }

  /// Throws when a size is below 1 or the product is not `world`; the message has every factor, the
  /// product and the nearest sizes that work.
  void check(int world) const;

  /// One row a group; together they cover the ranks disjointly. `axis` is data, tensor, pipeline
  /// or model (tensor x pipeline: the ranks that hold one copy of the model).
  std::vector<std::vector<int>> groups(const std::string& axis) const;
};

}  // namespace oslo
