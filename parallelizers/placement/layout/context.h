#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "mpu/base/error.h"
#include "mpu/grid/mesh.h"
#include "parallelizers/placement/layout/gather_report.h"
#include "parallelizers/placement/layout/known_strides.h"
#include "parallelizers/placement/residency/stage_ranks.h"
#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {

struct KnownShapes;
class CallObserver;
class ContentProvider;
class KernelFusion;
class StageCarrier;

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

  // Residency: a value that some pipeline stages hold is a shape without content on the ranks of
  // the others, and stays placed on all of them.
  /// Which stages this rank has, and where the others are.
  StageRanks stage_ranks;
  bool holds(StageSet stages) const { return stage_ranks.holds(stages); }
  /// What values of other stages say they are on: the model's device. It follows `model->to`
  /// (carrier/graph/set_data.h).
  mutable at::Device device = at::kCPU;
  /// What is known of operators on shapes (placement/elsewhere/shape_call.h). Null: every rank
  /// holds all values, and none has a stage.
  std::shared_ptr<KnownShapes> shapes;
  /// The ranks that have this one's place along the pipeline, by pipeline rank. Null where values
  /// have no stages, and where nothing but a test's schedule knows of them.
  std::shared_ptr<Group> stages;
  /// Takes values to other stages outside a step, where no gradients are recorded
  /// (placement/elsewhere/stage_carrier.h). Null: nobody does.
  std::shared_ptr<StageCarrier> evaluation;
  /// A schedule is running the model's forward, whose gradients cross stages.
  mutable std::atomic<bool> in_step = false;
  /// Gives content where no rank has any (placement/elsewhere/content_provider.h). Null: reading
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
  const Mesh& mesh_;
  mutable GatherReport gathers_;
  mutable KnownStrides strides_;
  mutable std::atomic<uint64_t> uncounted_writes_ = 0;
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
