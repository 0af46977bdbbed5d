#pragma once

#include <string>
#include <vector>

#include "mpu/grid/rank_grid.h"

namespace oslo {

/// The axis over which sequences are cut, and no weight (search/context_plan.h).
inline constexpr const char* kContextAxis = "context";

/// The axes that a plan cuts layers over, and the one among them that it decides by itself.
struct PlanAxes {
  /// One axis, "tensor".
  PlanAxes(int ranks) : axes{{"tensor", ranks}} {}  // NOLINT(google-explicit-constructor)
  /// The axes of a grid that cut layers.
  explicit PlanAxes(const RankGrid& grid);

  std::vector<Axis> axes;  ///< outermost first, at least one
  /// The axis that the structural plan and the search cut over, and that a style without an axis
  /// means: the only one that is not "context", or of several the one named "tensor". Empty where
  /// there is none: layers are then cut only as patterns and policies say.
  std::string searched = "tensor";

  /// How many ranks lie along the searched axis; 1 without one.
  int searched_ranks() const;
  /// How many parts a parameter can have at most.
  int ranks() const;
  /// The same where plans made by the library cut it: they leave weights whole over "context".
  int ranks_of_weights() const;
  bool has(const std::string& name) const;
  /// "row and column".
  std::string names() const;
};

}  // namespace oslo
