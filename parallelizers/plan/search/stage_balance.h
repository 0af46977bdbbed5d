#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/plan/dry/rates.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/layers/plan_axes.h"
#include "parallelizers/stages/stage_plan.h"

namespace oslo {

/// A model as a pipeline's layers are balanced over stages: what it is made of, and a forward.
struct BalancedModel {
  const ModelView& model;
  const std::vector<LayerPlan>& layers;  ///< how its weights are cut beside
  const PlanAxes& axes;
  const std::function<void()>& example;  ///< may be empty for `stages_by_memory`
  /// Of the pipeline's ranks, which has a stage; empty: each stage has one of its own.
  std::vector<int> rank_of_stage = {};
};

/// The stage of each of a pipeline's layers (model_layers.h, of `wishes.layers` if that is given),
/// such that of all contiguous cuts into `wishes.stages` the slowest stage takes least, or the
/// slowest rank where ranks have several (stages/rank_balance.h): forward, backward and
/// collectives of the example by `rates`, with the embeddings and heads that lie beside the first
/// and last layers. One run of the example on shapes, with each layer a stage of its own; of more
/// than 64 layers some neighbours are one. Throws where the example cannot be run on shapes.
std::vector<int> stages_by_time(const BalancedModel& of, const StageWishes& wishes,
                                const Rates& rates);

/// The same such that the stage, or the rank of several, that holds most between steps holds least:
/// parameters, their gradients and AdamW's two moments, and buffers, as a rank holds them. Without
/// an example copies are not seen of tensors that several stages use (a head that is the transposed
/// table).
std::vector<int> stages_by_memory(const BalancedModel& of, const StageWishes& wishes);

}  // namespace oslo
