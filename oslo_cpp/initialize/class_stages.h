#pragma once

#include <concepts>
#include <memory>

#include "parallelizers/stages/stage_assignment.h"

namespace oslo {

/// Whether a model's class says by itself which modules lie on which pipeline stages, as LiBai's
/// models do: by a static member
///
///     static void set_pipeline_stage_id(BertImpl& model, oslo::StageAssignment& stages) {
///       for (const auto& module : model.modules()) {
///         if (auto* layer = module->as<TransformerLayerImpl>())
///           stages.set_layer_idx(module, layer->layer_idx);
///       }
///       stages.set_layer_idx(model.final_layernorm, -1);
///     }
///
/// `initialize` calls it where there are stages. It overrides the automatic rule, ids, balancing
/// and the modules' own `layer_idx`; `InitializeOptions::stages` overrides it.
template <typename Impl>
concept SetsPipelineStageId = requires(Impl& model, StageAssignment& stages) {
  Impl::set_pipeline_stage_id(model, stages);
};

template <typename Impl>
concept NamesPipelineStageId = requires {
  &Impl::set_pipeline_stage_id;
};

/// What the class of `model` says; nothing where it has no such member. One of another signature
/// does not compile: it would never be called.
template <typename Impl>
StageAssignment class_stages(const std::shared_ptr<Impl>& model) {
  static_assert(SetsPipelineStageId<Impl> || !NamesPipelineStageId<Impl>,
                "set_pipeline_stage_id of a model's class is called as static void "
                "set_pipeline_stage_id(Impl& model, oslo::StageAssignment& stages)");
  StageAssignment stages;
  if constexpr (SetsPipelineStageId<Impl>) {
    if (model) Impl::set_pipeline_stage_id(*model, stages);
  }
  return stages;
}

}  // namespace oslo
