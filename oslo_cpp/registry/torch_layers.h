#pragma once

#include <torch/nn/modules/container/any.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace oslo {

/// LibTorch's layer of an entry, with the names and defaults of Python's arguments:
/// `{"type": "Linear", "in_features": 3, "out_features": 512, "bias": false}`. Empty for a type
/// that is none of them. Throws `ConfigError` for arguments that are missing, unknown or of another
/// kind.
torch::nn::AnyModule torch_layer(const nlohmann::json& entry);

std::vector<std::string> torch_layer_names();

}  // namespace oslo
