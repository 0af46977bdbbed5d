#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mpu/grid/rank_order.h"

namespace oslo {

/// One kind of parallelism: its name and how many ranks lie along it.
struct Axis {
  std::string name;
  int size = 1;
  bool operator==(const Axis&) const = default;
};

/// The world's ranks as a grid of any number of named axes, outermost first: neighbours along the
/// last axis have neighbouring ranks.
///
/// A name means the same in every grid:
///   - "data" is the replica axis: ranks along it hold copies of the model and see other batches.
///   - "pipeline" holds the stages of a model.
///   - every other axis (tensor, row, column, depth, sequence, context, expert, or a name of one's
///     own) cuts the parameters and values of a layer.
///   - "model" is all axes but data: the ranks that hold one copy of the model.
///   - "tensor", where no axis has that name, is all axes that cut layers.
///   - "sequence", where no axis has that name, is "context".
/// Of a grid that lacks data, pipeline, tensor, row, column, depth, context or sequence, that axis
/// has size 1, so that programs run unchanged without it.
class RankGrid {
 public:
  /// One rank.
  RankGrid() = default;

  /// Throws when a name is reserved, given twice, or is no name: lower-case letters, digits and
  /// underscores, a letter first.
  explicit RankGrid(std::vector<Axis> axes);

  /// The grid of three sizes in one of the two usual orders.
  static RankGrid of_sizes(int data, int tensor, int pipeline,
                           RankOrder order = RankOrder::pp_dp_tp);

  const std::vector<Axis>& axes() const { return axes_; }

  /// The number of ranks.
  int size() const;
  /// How many ranks lie along `axis`. Throws, naming the axes that there are, for an unknown name.
  int size(const std::string& axis) const;

  /// Where `rank` is along `axis`, from 0.
  int coordinate(const std::string& axis, int rank) const;

  /// Throws when a size is below 1 or the product is not `world`; the message has every factor, the
  /// product and the nearest sizes that work.
  void check(int world) const;

  /// One row a group, in ascending order; together they cover the ranks disjointly.
  std::vector<std::vector<int>> groups(const std::string& axis) const;

  /// The axes that `name` stands for, outermost first: one, several ("model"), or none where the
  /// grid lacks it.
  std::vector<std::string> parts(const std::string& name) const;
  /// The axes that cut layers, outermost first: all but data and pipeline.
  std::vector<std::string> layer_axes() const;

  /// The order that `of_sizes` would need to make this grid; none where it has other axes or
  /// another order.
  std::optional<RankOrder> rank_order() const;

  /// The ranks drawn as a grid, and every axis's groups. Long lists are abridged.
  std::string to_string() const;

  bool operator==(const RankGrid&) const = default;

 private:
  bool has(const std::string& axis) const;
  std::vector<int> coordinates(int rank) const;

  std::vector<Axis> axes_;
};

/// "pipeline 2 x data 2 x tensor 4"; "1 rank" of a grid without axes.
std::string factors(const std::vector<Axis>& axes);

}  // namespace oslo
