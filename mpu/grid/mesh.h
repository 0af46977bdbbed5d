#pragma once

#include <ATen/core/Generator.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/grid/gather_report.h"
#include "mpu/grid/known_strides.h"
#include "mpu/grid/stage_ranks.h"
#include "mpu/grid/stage_set.h"
#include "mpu/group/group.h"

namespace oslo {

struct KnownShapes;
class CallObserver;
class ContentProvider;
class KernelFusion;
class StageCarrier;

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

  /// What one device's results lie like, where the parts do not show it.
  KnownStrides& strides() const { return strides_; }

  /// Writes to tensors that count none themselves (those of inference mode).
  uint64_t uncounted_writes() const { return uncounted_writes_; }
  void count_write() const { ++uncounted_writes_; }

  RandomMode random_mode = RandomMode::like_one_device;
  /// For RandomMode::per_rank; undefined: the default generator.
  at::Generator sharded_generator;

  // Residency: a value that some pipeline stages hold is a shape without content on the ranks of
  // the others, and stays placed on all of them.
  /// Which stages this rank has, and where the others are.
  StageRanks stage_ranks;
  bool holds(StageSet stages) const { return stage_ranks.holds(stages); }
  /// What values of other stages say they are on: the model's device. It follows `model->to`
  /// (carrier/graph/set_data.h).
  mutable at::Device device = at::kCPU;
  /// What is known of operators on shapes (placement/residency/shape_call.h). Null: every rank
  /// holds all values, and none has a stage.
  std::shared_ptr<KnownShapes> shapes;
  /// The ranks that have this one's place along the pipeline, by pipeline rank. Null where values
  /// have no stages, and where nothing but a test's schedule knows of them.
  std::shared_ptr<Group> stages;
  /// Takes values to other stages outside a step, where no gradients are recorded
  /// (placement/residency/stage_carrier.h). Null: nobody does.
  std::shared_ptr<StageCarrier> evaluation;
  /// A schedule is running the model's forward, whose gradients cross stages.
  mutable std::atomic<bool> in_step = false;
  /// Gives content where no rank has any (placement/residency/content_provider.h). Null: reading
  /// values of other stages is refused.
  std::shared_ptr<ContentProvider> provider;

  /// Told of every call that the model's forward makes on placed values; mostly null.
  std::shared_ptr<CallObserver> observer;

  /// What products compute in one pass with what stands beside them (placement/engine/
  /// kernel_fusion.h). Null: LibTorch's operators, one by one.
  std::shared_ptr<KernelFusion> fusion;

  /// Why values that are elsewhere may not be used any more; empty while they may.
  std::string ended;
  void check_not_ended() const { OSLO_CHECK(ended.empty(), ended); }

 private:
  std::vector<std::shared_ptr<Group>> axes_;
  mutable GatherReport gathers_;
  mutable KnownStrides strides_;
  mutable std::atomic<uint64_t> uncounted_writes_ = 0;
};

using MeshPtr = std::shared_ptr<const Mesh>;

}  // namespace oslo
