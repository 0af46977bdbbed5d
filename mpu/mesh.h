#pragma once

#include <ATen/core/Generator.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "mpu/gather_report.h"
#include "mpu/group.h"

namespace oslo {

struct DryShapes;

/// Where the random numbers of an operator on a cut value come from.
enum class RandomMode {
  /// What one device would draw: every rank draws for the whole value and keeps its part. Needs the
  /// same generator state on all ranks of the mesh (the same seed), and gives one device's masks.
  like_one_device,
  /// Every rank draws for its part only: cheaper, statistically as good, other numbers. Whole
  /// values still need equal generator states; cut ones use the mesh's sharded generator.
  per_rank,
};

/// The axes over which values are cut, outermost first: one for 1D tensor parallelism, two for 2D
/// or a batch axis beside it. A placement points to its mesh, the mesh to its groups; nothing is
/// global.
class Mesh {
 public:
  explicit Mesh(std::vector<std::shared_ptr<Group>> axes) : axes_(std::move(axes)) {}

  int axes() const { return static_cast<int>(axes_.size()); }
  const std::shared_ptr<Group>& axis(int i) const { return axes_[i]; }

  /// What operators gathered because no rule could keep it cut.
  GatherReport& gathers() const { return gathers_; }

  /// Writes to tensors that count none themselves (those of inference mode).
  uint64_t uncounted_writes() const { return uncounted_writes_; }
  void count_write() const { ++uncounted_writes_; }

  RandomMode random_mode = RandomMode::like_one_device;
  /// For RandomMode::per_rank; undefined: the default generator.
  at::Generator sharded_generator;

  /// Set in dry runs (placement/engine/dry_call.h): local tensors are shapes without content, and
  /// whole values stay placed, so that every operator is met. Null: the real thing.
  std::shared_ptr<DryShapes> dry;

 private:
  std::vector<std::shared_ptr<Group>> axes_;
  mutable GatherReport gathers_;
  mutable std::atomic<uint64_t> uncounted_writes_ = 0;
};

using MeshPtr = std::shared_ptr<const Mesh>;

}  // namespace oslo
