#pragma once

#include "parallelizers/placement/layout/context.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/report/plan_report.h"
#include "parallelizers/stages/stage_map.h"

namespace oslo {

/// Throws, naming the parameter, when one that the plan cuts, or that pipeline stages hold, cannot
/// be changed in place: it is part of a live graph, shares its memory with another tensor of the
/// model, or has a sparse gradient.
void check_cuttable(const std::vector<LayerPlan>& layers, const ModelView& model,
                    const StageMap& stages = {});

/// Throws, naming the parameter, where a graph that is still alive waits for gradients of one: of a
/// model whose values are followed each is marked.
void check_free_of_graphs(const ModelView& model);

/// Throws, naming the layer, when its weight or bias does not divide into the planned parts: where
/// two axes cut one dimension, the second one divides what the first one leaves on every rank.
void check_divides(const std::vector<LayerPlan>& layers, const ContextPtr& context);

/// Cuts the parameters of planned layers in place, their gradients with them. Tied parameters are
/// cut once, as the first layer in the tree says. Each goes to its stages: other ranks keep nothing
/// of it.
void cut_parameters(const std::vector<LayerPlan>& layers, const ContextPtr& context,
                    const StageMap& stages = {});

/// Takes the parameters and buffers that no layer's plan cuts to their stages, and marks what is
/// followed though nothing cuts it.
void place_on_stages(const ModelView& model, const ContextPtr& context, const StageMap& stages);

/// Cuts what `lm_head->weight = wte->weight` left registered and unused, like what took its place:
/// nobody reads it, but it has memory. Whatever else may hold it stays whole.
void cut_unused_parameters(const std::vector<LayerPlan>& layers, const ModelView& model);

/// Throws where a parameter, whatever the plan says of it, cannot be cut: it is part of a graph
/// that is alive, or shares memory with another, or with a buffer.
void check_all_cuttable(const ModelView& model);

/// Marks the parameters that nothing has marked yet, too, whole and in place, so that their uses
/// are met (CallObserver::about_to_use). `check_markable` throws, before anything is changed, where
/// one is part of a graph that is alive, or shares memory with another.
void check_markable(const ModelView& model);
void mark_whole(const ModelView& model, const ContextPtr& context);

/// Gradients of parameters that stay whole are ordinary tensors, though a user's autograd::Function
/// may compute them of cut values.
void keep_gradients_whole(const ModelView& model);

}  // namespace oslo
