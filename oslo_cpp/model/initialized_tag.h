#pragma once

#include <string>

#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Whether `initialize` has had this parameter: it is marked, or (whole) carries a tag that
/// operators do not see.
bool is_initialized(const at::Tensor& parameter);
/// Its name in the model that was initialized first; empty of other tensors, also of copies.
std::string initialized_name(const at::Tensor& parameter);

/// Whether `initialize` has had any parameter of the model.
bool is_initialized(const ModelView& model);
/// Whether it has had all of them. A model may share some with one that is parallel already.
bool is_all_initialized(const ModelView& model);

void set_initialized(const ModelView& model);
/// Takes that back for the parameters that are not marked.
void clear_initialized(const ModelView& model);

}  // namespace oslo
