#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "parallelizers/placement/placement.h"
#include "parallelizers/plan/style.h"

namespace oslo {

/// What can be cut: the weights of layers, and parameters that belong to none.
enum class LayerKind {
  linear,       ///< weight [out, in]
  embedding,    ///< table [rows, features]
  convolution,  ///< Conv1d, 2d, 3d: weight [out, in / groups, ...]
  attention,    ///< MultiheadAttention's fused in_proj_weight [3 x features, features]
  parameter,    ///< a matrix (two or more dimensions) that a user's own module registered
};

/// What is planned for one layer, and why.
struct LayerPlan {
  std::string path;  ///< "h.0.attn.c_attn"; of a parameter that of itself
  std::string name;  ///< its name in the parent; of a parameter in its module
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<torch::nn::Module> parent;
  LayerKind kind = LayerKind::linear;
  StyleText style;
  std::string why;
  bool asked_for = false;  ///< by a pattern or a policy

  bool embedding() const { return kind == LayerKind::embedding; }
  const at::Tensor& weight() const;
  /// Undefined where the layer has none.
  at::Tensor bias() const;
  bool parameter() const { return kind == LayerKind::parameter; }
  /// "h.0.attn.c_attn.weight".
  std::string weight_path() const;
  std::string bias_path() const;
  /// Of the weight, on the tensor axis.
  Placement weight_placement() const;
  /// Of the bias: cut like the output features, else whole.
  Placement bias_placement() const;
  /// The size of the dimension that is cut; 0 where none is.
  int64_t cut_size() const;
  /// How many independent parts a convolution has; 1 for the rest.
  int64_t groups() const;
  /// A convolution over the patches of an image, with which vision transformers and ConvNeXt begin:
  /// what it gives is not the inside of a layer but the stream that all layers add to.
  bool embeds_patches() const;
};

/// All that can be cut, whole for now, in the tree's order. Call it before anything is cut:
/// layers that are parallel already are an error.
std::vector<LayerPlan> plannable_layers(const std::shared_ptr<torch::nn::Module>& root);

/// Layers that share a weight are cut alike: as a pattern or policy asks for one of them, else as
/// the first of them in the tree is. Throws when they are asked for different cuts.
void follow_ties(std::vector<LayerPlan>& layers);

}  // namespace oslo
