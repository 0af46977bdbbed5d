#pragma once

#include <functional>
#include <vector>

#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/dry/rates.h"
#include "parallelizers/plan/layers/layer_plan.h"

namespace oslo {

/// Cuts every layer over the axes of a grid, for models that know nothing of it.
///
/// Over "row" and "column" (2D tensor parallelism, SUMMA: arXiv 2104.05343): of linear layers the
/// input features over rows and the output features over columns, of tables the words over rows and
/// the features over columns, of convolutions the features over columns. Batches are cut over rows,
/// and over an axis "depth" if there is one (2.5D, arXiv 2105.14500), on which weights are whole:
/// look-ups take this rank's part of their indices, and so does every layer of an input that comes
/// whole. A rank then holds 1/(rows x columns) of weights and 1/(depth x rows x columns) of
/// activations. Gradients are summed over what weights are whole on. Norms see features cut
/// (rules/reduce/normalization.cpp).
///
/// Over "output", "weight" and "input" (3D, arXiv 2105.14450): a linear layer gathers its input
/// over "weight" and its weight over "input", and scatters the batch of its result over "output";
/// the layer behind it has "weight" and "output" exchanged. Which is which follows from names, and
/// from runs on shapes. A rank holds 1/(ranks of the cube) of weights and activations.
///
/// Where the example shows that a look-up has no batch (positions), or that its input cannot be cut
/// so, that role takes it whole. What patterns and policies say of a layer stays. Recurrent layers,
/// MultiheadAttention and parameters of the user's own stay whole unless they say otherwise.
///
/// Over rows and columns linear layers drop what they gathered for their product and gather it
/// again in backward, as SUMMA does, unless `keeps_gathered`.
///
/// Deterministic: every rank finds the same. Throws what the example throws.
void cut_over_grid(std::vector<LayerPlan>& layers, const ModelView& model, const PlanAxes& axes,
                   const std::function<void()>& example, const Rates& rates, bool keeps_gathered);

}  // namespace oslo
