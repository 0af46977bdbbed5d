#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace oslo {

/// One parameter under several names.
struct Tie {
  at::Tensor tensor;
  std::vector<std::string> names;  ///< full names, in the tree's order
};

/// Parameters that are registered more than once: by `register_parameter` of one tensor in two
/// modules, or because a module itself is registered twice.
std::vector<Tie> find_ties(const std::shared_ptr<torch::nn::Module>& root);

/// `lm_head->weight = wte->weight` ties only the member that forward uses: LibTorch keeps the
/// tensor that the layer was made with among its parameters, where it is saved and trained for
/// nothing. Registers what the members of Linear and Embedding layers hold in its place, so that
/// the tree says what the model does, and returns the names of these parameters. An optimizer that
/// was made before still holds the forgotten tensor; it never gets a gradient, so it never changes.
/// Members that are not parameters (a view or a product of some) are left alone.
std::vector<std::string> repair_ties(const std::shared_ptr<torch::nn::Module>& root);

}  // namespace oslo
