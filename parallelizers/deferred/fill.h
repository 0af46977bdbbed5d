#pragma once

#include <string>

#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Computes what a deferred tensor's storage holds, in new memory of its size, and gives it to the
/// tensor, in place; others over the same storage take it when they are next met. One allocation
/// and a few strips where `Strips` can compute it, else what its operators take. Not under
/// DeferredInit, whose operators it would record.
void fill(const at::Tensor& tensor);

/// Fills the parameters and buffers of a model, and lets whatever else its DeferredInit made be
/// filled when it is used.
void fill(const ModelView& model);

/// Whether some parameter or buffer has no content yet.
bool is_deferred(const ModelView& model);

/// Throws `Error` led by `doing` where a tensor called `name` has no content yet.
void check_filled(const at::Tensor& tensor, const std::string& name, const char* doing);

/// Throws `Error` where filling would: an ordinary tensor that a recorded operator reads has been
/// written to since.
void check_fillable(const ModelView& model);

}  // namespace oslo
