#pragma once

#include <torch/nn/module.h>

namespace oslo {

/// Whether `initialize` has had this model: a parameter is marked, or (at size 1, where nothing is)
/// the first one carries a tag that operators do not see.
bool is_initialized(const torch::nn::Module& model);
void set_initialized(torch::nn::Module& model);

}  // namespace oslo
