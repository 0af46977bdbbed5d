#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <nlohmann/json.hpp>

namespace oslo {

/// A model that is a list of layers, each said by an entry of `layers_cfg`, as Colossal-AI's
/// ModelFromConfig: derive from it, and fill `layers_cfg` in the constructor with objects such as
/// `{{"type", "Linear"}, {"in_features", 3}, {"out_features", 512}}`. Types are registered classes
/// (module_registry.h) and LibTorch's layers (torch_layers.h).
class ModelFromConfig : public torch::nn::Module {
 public:
  /// One entry a layer, in their order.
  nlohmann::json layers_cfg = nlohmann::json::array();
  /// Those layers, once they are built.
  torch::nn::Sequential layers{nullptr};

  /// Builds and registers `layers`, and calls `init_weights`. `build_model` does it; a program that
  /// constructs the class by itself calls it, once. Throws as `build_layer` does, and for a list
  /// without entries.
  void build_from_cfg();

  /// What a class does with the layers when they are built; nothing unless it says so.
  virtual void init_weights() {}

  /// The layers one after the other. Throws before they are built.
  at::Tensor forward(const at::Tensor& input);
};

/// The layers of a list of entries, as a chain. Throws for an empty list.
torch::nn::Sequential build_layers(const nlohmann::json& layers_cfg);

}  // namespace oslo
