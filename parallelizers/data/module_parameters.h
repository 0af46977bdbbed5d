#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace oslo {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// The distinct parameters that the layers of `module` compute with, in its order, each under its
/// first name. `lm_head->weight = wte->weight` changes only the member that forward uses: of Linear
/// and Embedding layers the member counts, because the registered tensor never gets a gradient.
std::vector<NamedTensor> parameters_in_use(const torch::nn::Module& module);

/// Throws, naming it, when a layer of `module` makes sparse gradients.
void refuse_sparse_gradients(const torch::nn::Module& module);

}  // namespace oslo
