#pragma once

#include <torch/nn/module.h>

namespace oslo {

/// Throws, naming it, when a layer of `module` makes sparse gradients.
void refuse_sparse_gradients(const torch::nn::Module& module);

}  // namespace oslo
