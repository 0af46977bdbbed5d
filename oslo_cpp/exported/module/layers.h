#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "oslo_cpp/exported/module/module_uses.h"

namespace torch::nn {
class Module;
}

namespace oslo::exported {

/// The sizes of the tensors that a Python module registered itself, by name.
using LayerSizes = std::map<std::string, std::vector<int64_t>>;

/// LibTorch's layer for a module that was one of torch.nn in Python: Linear, Embedding, Conv1d to
/// 3d, LayerNorm, GroupNorm, BatchNorm1d to 3d, with the options that the graph shows. Its tensors
/// are of one element each, in place of those of the file. Null for all other modules, and where
/// the registered tensors are not those of such a layer (one whose weight is computed, say).
///
/// Draws random numbers, as layers do when they are made.
std::shared_ptr<torch::nn::Module> make_layer(const ModuleUse& use, const LayerSizes& sizes);

}  // namespace oslo::exported
