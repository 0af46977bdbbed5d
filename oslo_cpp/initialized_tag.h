#pragma once

#include <torch/nn/module.h>

namespace oslo {

/// Whether `initialize` has had this parameter: it is marked, or (whole) carries a tag that
/// operators do not see.
bool is_initialized(const at::Tensor& parameter);

/// Whether `initialize` has had any parameter of the model.
bool is_initialized(const torch::nn::Module& model);
/// Whether it has had all of them. A model may share some with one that is parallel already.
bool is_all_initialized(const torch::nn::Module& model);

void set_initialized(torch::nn::Module& model);

}  // namespace oslo
