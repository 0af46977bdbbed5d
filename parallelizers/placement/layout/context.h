#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "mpu/grid/mesh.h"
#include "parallelizers/placement/layout/gather_report.h"
#include "parallelizers/placement/layout/known_strides.h"
#include "parallelizers/placement/layout/precision.h"
#include "parallelizers/placement/layout/sequence_attention.h"
#include "parallelizers/placement/residency/residence.h"
#include "parallelizers/placement/residency/stage_ranks.h"
#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {

class CallObserver;
class GatherWatch;
class KernelFusion;
class SumWatch;
class WeightCasts;

/// What the values of one model share beyond the axes that they are cut over. Each mesh has one, as
/// long as it lives (`context_of`): layouts hold the context, and with it the mesh.
class ModelContext {
 public:
  explicit ModelContext(const Mesh& mesh) : mesh_(mesh) {}
  ModelContext(const ModelContext&) = delete;
  ModelContext& operator=(const ModelContext&) = delete;

  const Mesh& mesh() const { return mesh_; }

  /// What operators gathered because no rule could keep it cut.
  GatherReport& gathers() const { return gathers_; }

  /// What one device's results lie like, where the parts do not show it.
  KnownStrides& strides() const { return strides_; }

  /// Writes to tensors that count none themselves (those of inference mode).
  uint64_t uncounted_writes() const { return uncounted_writes_; }
  void count_write() const { ++uncounted_writes_; }

  RandomMode random_mode() const { return mesh_.random().mode; }
  /// For RandomMode::per_rank; undefined: the default generator.
  const at::Generator& sharded_generator() const { return mesh_.random().sharded; }

  /// Where the values live. Null: every rank holds all of them, and there is nothing to ask.
  Residence* residence() const { return residence_; }
  /// Said before there are values. `in_step`: while a step is under way.
  void set_residence(std::shared_ptr<Residence> residence,
                     std::shared_ptr<Residence> in_step = nullptr);

  // Of the residence, where there is one.
  bool holds(StageSet stages) const { return residence() == nullptr || residence()->holds(stages); }
  /// A rank that holds everything is the one rank of one stage.
  const StageRanks& stage_ranks() const;
  /// The ranks that have this one's place along the pipeline; null without a pipeline.
  std::shared_ptr<Group> pipeline() const;
  /// The model's, on a pipeline.
  at::Device device() const;
  ContentProvider* imagined() const;
  void check_not_ended() const {
    if (residence() != nullptr) check_not_ended_there();
  }

  /// A schedule is running the model's forward, whose gradients cross stages if there are any.
  bool in_step() const { return in_step_; }
  /// False where a step is under way.
  bool begin_step() const;
  void end_step() const;

  /// Told of every call that the model's forward makes on placed values; mostly null.
  std::shared_ptr<CallObserver> observer;

  /// Told of partial sums that end (layout/partial_sum.h); null but while a plan is made.
  std::shared_ptr<SumWatch> sum_watch;

  /// Told of gathers that no plan has an operator do, before they happen (layout/gather_watch.h);
  /// null: they are reported alone (`gathers`).
  std::shared_ptr<GatherWatch> gather_watch;

  /// What products compute in one pass with what stands beside them (placement/engine/
  /// kernel_fusion.h). Null: LibTorch's operators, one by one.
  std::shared_ptr<KernelFusion> fusion;

  /// How attention over a cut sequence is done. Said before there are values.
  SequenceAttention sequence_attention = SequenceAttention::automatic;

  /// In which types the model's forward computes, and gradients are reduced. Said before there are
  /// values.
  Precision precision;
  /// The weights in the type that products compute in (carrier/weight_casts.h); null where none are
  /// kept.
  std::shared_ptr<WeightCasts> weight_casts;

  /// The axis of the mesh whose ranks are data replicas, which compute with other values: a value
  /// that is cut over it (a weight of which each keeps a part, its gradient, a state of it) meets
  /// theirs whole (door/beside_replicas.h). -1: there is none. Said before there are values.
  int replica_axis = -1;

  /// Whether the model's values are followed (`Layout::followed`): its parameters are marked on
  /// every grid, on one rank too.
  bool follows() const { return precision.autocast || precision.master_weights; }

 private:
  void check_not_ended_there() const;

  const Mesh& mesh_;
  mutable GatherReport gathers_;
  mutable KnownStrides strides_;
  mutable std::atomic<uint64_t> uncounted_writes_ = 0;
  std::shared_ptr<Residence> between_steps_, step_;
  mutable std::atomic<Residence*> residence_ = nullptr;  ///< one of them
  mutable std::atomic<bool> in_step_ = false;
};

using ContextPtr = std::shared_ptr<const ModelContext>;

/// The context of values over `mesh`, made where there is none yet. Whoever makes a model says
/// there what its values share, before there are any.
std::shared_ptr<ModelContext> context_of(const MeshPtr& mesh);

/// Whether the values of two models may meet: models that were initialized one by one have contexts
/// of their own over the same ranks. What the operator then moves is counted by the context of the
/// first operand. Values that lie on other pipeline stages do not meet.
bool over_same_ranks(const ModelContext& a, const ModelContext& b);
inline bool over_same_ranks(const ContextPtr& a, const ContextPtr& b) {
  return a == b || over_same_ranks(*a, *b);
}

}  // namespace oslo
