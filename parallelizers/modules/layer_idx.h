#pragma once

#include <optional>
#include <string>

namespace oslo {

/// LiBai's attribute `layer_idx`: a module with it lies on the pipeline stage of that layer of the
/// model (parallelizers/stages/model_layers.h), with all that is beneath it; from 0, -1 is the last
/// layer. `initialize` finds it on any module of the model, and without a pipeline it says nothing:
///
///     struct BlockImpl : torch::nn::Module, oslo::LayerIdx {
///       explicit BlockImpl(int layer_idx) : oslo::LayerIdx(layer_idx) { ... }
///
/// Calls on `InitializeOptions::stages`, and the model's own `set_pipeline_stage_id`, override it.
struct LayerIdx {
  LayerIdx() = default;
  explicit LayerIdx(std::optional<int> layer_idx) : layer_idx(layer_idx) {}

  std::optional<int> layer_idx;

  /// Of a parallel layer that is whole until `initialize`, which is to cut it: how, in a plan's
  /// words ("column"). Empty: it says nothing.
  std::string left_to_plan;
};

}  // namespace oslo
