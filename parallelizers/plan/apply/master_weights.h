#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo {

/// Keeps in fp32 the parameters that a model's author had turned into bf16 or fp16, in place, with
/// the gradients that they have: the tensors stay the objects that typed members, ties and
/// optimizers hold. Where a forward uses them it goes on reading the narrow type
/// (`WeightCasts::set_type`). Called before anything is cut, with the context's `weight_casts`
/// made. Returns what was done, for people; empty where nothing was.
std::string keep_in_fp32(const ModelView& model, const ContextPtr& context);

/// Which parameters the model's author had in which narrow type.
using AuthorTypes = std::vector<std::pair<at::Tensor, at::ScalarType>>;

/// Those that `keep_in_fp32` has kept.
AuthorTypes author_types(const ContextPtr& context);

/// The same of parameters that are in fp32 already, as they are after `keep_in_fp32` when the model
/// changes its layout.
void keep_in_fp32(const AuthorTypes& types, const ContextPtr& context);

/// Rounds the parameters of a whole, ordinary model to the types that its author had them in.
/// Gradients stay as they are.
void give_types_back(const AuthorTypes& types);

/// Throws, naming the parameter, where one cannot be kept so: it was made under `DeferredInit`, and
/// is to be filled in the type that it has.
void check_kept_in_fp32(const ModelView& model);

}  // namespace oslo
