#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "parallelizers/placement/placement.h"

namespace oslo {

/// How the weight of a layer is cut.
enum class Style {
  replicate,  ///< every rank holds it
  column,     ///< output features (of an embedding: the embedding dimension)
  row,        ///< input features of a linear layer
  vocab,      ///< rows of an embedding; of a linear layer the same as column
};

std::string to_string(Style style);

/// A style as plans write it: "column", "row", "vocab", "replicate", the first two optionally with
/// "blocks=3" (a fused projection) and "unit=16" (a head): "column blocks=3 unit=16".
struct StyleText {
  Style style = Style::replicate;
  int64_t blocks = 1;
  int64_t unit = 1;

  /// Throws naming `where` when the text is none of these.
  static StyleText parse(const std::string& text, const std::string& where);
};

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

/// Layers that share a weight are cut alike, as the first of them in the tree is. Throws when a
/// pattern or policy asks for something else.
void follow_ties(std::vector<LayerPlan>& layers);

}  // namespace oslo
