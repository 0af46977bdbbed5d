#pragma once

#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Gives the parameters that are bf16 or fp16 gradients in fp32, and turns those that they have
/// into such. What a backward pass brings is cast before it is added (`set_grad_dtype` of the
/// parameter's autograd meta), so that neither many micro-batches nor many uses of a tied weight
/// lose the small ones: 256 + 1 is 256 in bf16. Costs 2 bytes more an element, as long as there is
/// a gradient. Called before anything is cut.
///
/// LibTorch's optimizers take such gradients: their operators compute in fp32 and round to the type
/// of what they write to, the parameter or a state that is made like it.
void widen_gradients(const ModelView& model);

/// The other way round: half parameters have gradients of their own type again, and those that they
/// have are rounded to it. Of a whole, ordinary model.
void narrow_gradients(const ModelView& model);

}  // namespace oslo
