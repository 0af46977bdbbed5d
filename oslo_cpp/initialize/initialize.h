#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mpu/grid/random_streams.h"
#include "mpu/grid/rank_grid.h"
#include "mpu/world/world.h"
#include "oslo_cpp/config/config.h"
#include "oslo_cpp/initialize/class_stages.h"
#include "oslo_cpp/model/parallel_model.h"
#include "parallelizers/plan/layers/explicit_plan.h"
#include "parallelizers/stages/stage_assignment.h"

namespace torch::optim {
class Optimizer;
}

namespace oslo {

/// What `initialize` may be told beside the config.
struct InitializeOptions {
  /// Unset: `World::from_environment()`.
  World world;

  /// A forward on example data, of the shapes that training will have. It is run on shapes without
  /// content (no memory, no communication) to find out how the weights are best cut: see
  /// parallelizers/plan/search/automatic_plan.h. Parameters, buffers and random states are as
  /// before afterwards. A forward that writes to one in its first run only (initialization by the
  /// first batch) is refused, as a plain member must remember that: run one real forward before.
  /// Without it the plan follows from names and shapes alone.
  std::function<void()> example_inputs;

  /// Whether the search may also cut parameters of two or more dimensions that belong to no layer
  /// (matrices that a module of yours registers itself), where the example's forward shows it safe:
  /// it reads no sizes of theirs, and nothing has to gather them. A cut parameter's sizes are the
  /// local ones: code that the example does not run would go on with those; then set it to false,
  /// and they stay whole unless the config's "plan" says "shard(dimension)".
  bool cut_own_parameters = true;

  /// A file of rates (docs/plan.md), in place of this machine's own, by which the search counts
  /// seconds. Empty: the file that OSLO_RATES names; else those kept in the user's cache folder;
  /// else they are measured, once, which takes a second or two. Ranks that are threads, or are
  /// pretended, measure nothing and keep nothing: without a file they take nominal ones. Refused
  /// without `example_inputs`; nothing is searched, and it is not read, where no rank cuts.
  std::string rates;

  /// The bytes that a rank may use for parameters, gradients and what waits for backward, as the
  /// search expects them (an optimizer's states come on top); 0: no limit. Layers that would stay
  /// whole are cut where that is needed. Throws where it does not suffice, with the figures, on one
  /// rank too. Refused where nothing shows what a rank needs: without `example_inputs`, with one
  /// that cannot be run on shapes, and over pipeline stages.
  int64_t memory_limit = 0;

  /// The optimizer that will train the model, for a budget of memory: what its states take is
  /// foreseen by its class and options. Null: AdamW. It is looked at, and not kept.
  const torch::optim::Optimizer* optimizer = nullptr;

  /// As the config's `"strict": true`: once the model is planned, an operator that would have to
  /// gather throws, and what the example shows of it is refused here (explain/strict_gathers.h).
  bool strict = false;

  /// Placements for the layers inside every module of a class; see `policy_for`. They override the
  /// structural plan; the config's "plan" overrides them.
  std::vector<Policy> policies;

  /// Pipeline stages for modules of the model, as LiBai's `set_pipeline_stage_id` gives them. They
  /// override LiBai's rule, stage ids and balancing; the config's "stages" overrides them.
  StageAssignment stages;

  /// What the model's class says of them itself (class_stages.h): `initialize` of a holder, or of a
  /// shared_ptr of the class, asks it.
  StageAssignment class_stages = {};

  /// The grid of ranks as named axes with all their sizes, outermost first, in place of the
  /// config's sizes (see MpuOptions::axes); empty: as the config says. Of several axes that cut
  /// layers the plan decides by itself over the one named "tensor"; the others cut what the
  /// config's "plan" and policies say, by styles of an axis: "row: row; column: column".
  std::vector<Axis> axes;

  /// Random numbers of operators on cut values.
  RandomMode random_mode = RandomMode::like_one_device;
  /// Seed of the MPU's random streams.
  uint64_t seed = 0;
};

/// Parallelizes `model`, in place, as `config` says: cuts its parameters over the tensor-parallel
/// ranks. Its modules keep their objects and classes, and its own code goes on being called as
/// before. Call it on every rank with the same config and the same model (same seed, or the same
/// file): both are compared before the first collective, and so are the states of the default
/// generators of the ranks that will share the model. Where no rank was ever seeded all take rank
/// 0's values, and the ranks of one model its first rank's random state; rank 0 says so in a line
/// on the standard error. Optimizers may be made before or after, but not stepped before. A model
/// constructed under `DeferredInit` is filled at the end, with this rank's parts alone.
///
/// Several models may be initialized one after the other, over the same tensor ranks: their values
/// may meet in one operator, and models may share layers, which stay as the first one decided.
///
/// Where less than half of the parameters' bytes is cut, rank 0 says so in a line on the standard
/// error, with what may help.
///
/// Throws `Error` on every rank for a config that does not fit the world, for ranks that differ,
/// for a model that is parallel already, and for a plan that does not fit the model; the model is
/// then as it was. `"enable": false` leaves the model untouched; at size 1 on every axis nothing is
/// cut, and running it costs nothing.
ParallelModel initialize(std::shared_ptr<torch::nn::Module> model, const Config& config = {},
                         const InitializeOptions& options = {});

template <typename Impl>
requires std::derived_from<Impl, torch::nn::Module> && NamesPipelineStageId<Impl> ParallelModel
initialize(const std::shared_ptr<Impl>& model, const Config& config = {},
           InitializeOptions options = {}) {
  options.class_stages = class_stages(model);
  return initialize(std::shared_ptr<torch::nn::Module>(model), config, options);
}

template <typename Impl>
ParallelModel initialize(const torch::nn::ModuleHolder<Impl>& model, const Config& config = {},
                         const InitializeOptions& options = {}) {
  if constexpr (NamesPipelineStageId<Impl>) return initialize(model.ptr(), config, options);
  return initialize(std::shared_ptr<torch::nn::Module>(model.ptr()), config, options);
}

}  // namespace oslo
