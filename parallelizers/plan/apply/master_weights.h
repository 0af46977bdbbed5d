#pragma once

#include <string>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo {

/// Keeps in fp32 the parameters that a model's author had turned into bf16 or fp16, in place, with
/// the gradients that they have: the tensors stay the objects that typed members, ties and
/// optimizers hold. Where a forward uses them it goes on reading the narrow type
/// (`WeightCasts::set_type`). Called before anything is cut, with the context's `weight_casts`
/// made. Returns what was done, for people; empty where nothing was.
std::string keep_in_fp32(const ModelView& model, const ContextPtr& context);

/// Throws, naming the parameter, where one cannot be kept so: it was made under `DeferredInit`, and
/// is to be filled in the type that it has.
void check_kept_in_fp32(const ModelView& model);

}  // namespace oslo
