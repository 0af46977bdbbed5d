#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "parallelizers/placement/placement.h"
#include "parallelizers/plan/style.h"

namespace oslo {

/// What is planned for one linear or embedding layer, and why.
struct LayerPlan {
  std::string path;  ///< "h.0.attn.c_attn"
  std::string name;  ///< its name in the parent
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<torch::nn::Module> parent;
  StyleText style;
  std::string why;
  bool asked_for = false;  ///< by a pattern or a policy

  bool embedding() const;
  /// "h.0.attn.c_attn.weight".
  std::string parameter(const char* which) const;
  /// Of the weight, on the tensor axis.
  Placement weight_placement() const;
  /// Of the bias: cut like the output features, else whole.
  Placement bias_placement() const;
  /// The size of the dimension that is cut.
  int64_t cut_size() const;
};

/// Every layer that can be cut, whole for now, in the tree's order. Call it before anything is cut:
/// layers that are parallel already are an error.
std::vector<LayerPlan> plannable_layers(const std::shared_ptr<torch::nn::Module>& root);

/// Layers that share a weight are cut alike: as a pattern or policy asks for one of them, else as
/// the first of them in the tree is. Throws when they are asked for different cuts.
void follow_ties(std::vector<LayerPlan>& layers);

}  // namespace oslo
