#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "mpu/base/companion.h"
#include "mpu/grid/random_streams.h"
#include "mpu/group/group.h"

namespace oslo {

/// The axes over which values are cut, outermost first: one for 1D tensor parallelism, two for 2D
/// or a batch axis beside it. A list of groups, and how their ranks draw random numbers.
class Mesh {
 public:
  explicit Mesh(std::vector<std::shared_ptr<Group>> axes, RandomDraws random = {})
      : axes_(std::move(axes)), random_(std::move(random)) {}

  int axes() const { return static_cast<int>(axes_.size()); }
  const std::shared_ptr<Group>& axis(int i) const { return axes_[i]; }

  /// How operators on values that are cut over these axes draw.
  const RandomDraws& random() const { return random_; }

  /// Where the floor above keeps what values over these axes share
  /// (parallelizers/placement/layout/context.h).
  Companion& companion() const { return companion_; }

 private:
  std::vector<std::shared_ptr<Group>> axes_;
  RandomDraws random_;
  mutable Companion companion_;
};

using MeshPtr = std::shared_ptr<const Mesh>;

}  // namespace oslo
