#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mpu/grid/mesh.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/modules/parameters_in_use.h"
#include "parallelizers/placement/layout/placement.h"
#include "parallelizers/plan/layers/layer_traits.h"
#include "parallelizers/plan/layers/plan_axes.h"
#include "parallelizers/plan/layers/style.h"

namespace oslo {

/// What is planned for one layer, and why.
struct LayerPlan {
  std::string path;  ///< "h.0.attn.c_attn"; of a parameter that of itself
  std::string name;  ///< its name in the parent; of a parameter in its module
  /// Null for a model of another kind than torch::nn::Module.
  std::shared_ptr<torch::nn::Module> module, parent;
  LayerKind kind = LayerKind::linear;
  LayerStyle style;  ///< on `axis`
  std::string why;
  bool asked_for = false;  ///< by a pattern or a policy
  AxisUse use = {};        ///< on `axis`, as a pattern says; the search leaves it alone
  /// Forward computes the weight from other parameters (weight norm): what is registered under its
  /// name is not used. It stays whole, and its bias.
  bool computed = false;
  /// An earlier initialize decided, of a model that has this layer too.
  bool decided = false;
  /// The axis that the plan decides by itself (PlanAxes); empty: none.
  std::string axis = "tensor";
  /// On axes that patterns and policies name beside it; whole on those that are not here.
  std::map<std::string, LayerStyle> other_styles = {};
  /// What is gathered for its product is gathered again in backward (WeightUses::gathers_again).
  bool gathers_again = false;
  LayerView view = {};  ///< where the weight and bias are, and what the layer's class says of them

  const LayerTraits& traits() const { return traits_of(kind); }
  bool embedding() const { return view.table; }
  const at::Tensor& weight() const;
  /// Undefined where the layer has none, or forward computes it.
  at::Tensor bias() const;
  bool parameter() const { return traits().bare; }
  /// Whether the search may choose.
  bool free() const {
    return !asked_for && !computed && !decided && !axis.empty() && view.stays_whole.empty();
  }
  bool recurrent() const { return traits().recurrent; }
  /// One parameter of the layer.
  struct Part {
    std::string name;  ///< in its module
    std::string path;  ///< "h.0.attn.c_attn.bias"
    at::Tensor tensor;
    at::Tensor* member = nullptr;  ///< where forward reads it; null: what is registered
    bool bias = false;             ///< cut as the bias is, else as the weight
  };
  /// The weight, the bias where there is one, and the others of a recurrent layer.
  std::vector<Part> parts() const;
  std::vector<Placement> placements(const Part& part, const Mesh& mesh) const {
    return part.bias ? bias_placements(mesh) : weight_placements(mesh);
  }
  /// Elements of the weight, and of what is cut as it is.
  int64_t weight_elements() const;
  const LayerStyle& style_on(const std::string& axis) const;
  const AxisUse& use_on(const std::string& axis) const;
  /// Takes over these styles; whole on other axes.
  void set_styles(const AxisStyles& styles);
  /// "column"; of several axes "row: row; column: column".
  std::string style_text() const;
  /// Whether both cut a weight of theirs alike on every axis.
  bool cuts_weight_like(const LayerPlan& other) const;
  /// Whether some axis cuts the weight, or the bias.
  bool cuts_weight() const;
  bool cuts_bias() const;
  /// Leaves the layer whole, as its weight is computed. Throws when a pattern asks for a cut.
  void set_computed();
  /// "weight", of attention "in_proj_weight", of a recurrent layer "weight_ih_l0".
  const std::string& weight_name() const { return view.weight_name; }
  /// "h.0.attn.c_attn.weight".
  std::string weight_path() const;
  /// Of the weight, on `axis`.
  Placement weight_placement() const { return weight_placement(style); }
  /// Of the bias, on `axis`: cut like the output features, else whole.
  Placement bias_placement() const { return bias_placement(style); }
  Placement weight_placement(const LayerStyle& style) const;
  Placement bias_placement(const LayerStyle& style) const;
  /// One for each axis of the mesh.
  std::vector<Placement> weight_placements(const Mesh& mesh) const;
  std::vector<Placement> bias_placements(const Mesh& mesh) const;
  /// The size of the dimension that is cut on `axis`; 0 where none is.
  int64_t cut_size() const { return cut_size(style); }
  int64_t cut_size(const LayerStyle& style) const;
  /// How many independent parts a convolution has; 1 for the rest.
  int64_t groups() const { return view.groups; }
  /// A convolution over the patches of an image, with which vision transformers and ConvNeXt begin:
  /// what it gives is not the inside of a layer but the stream that all layers add to.
  bool embeds_patches() const;
};

/// All that can be cut, whole for now, in the tree's order. The plan decides the styles on `axis`.
std::vector<LayerPlan> plannable_layers(const ModelView& model, const std::string& axis = "tensor");

/// Leaves the layers whole whose weight forward was seen to compute; whether there are new ones.
/// Throws when a pattern or policy asks for one of them.
bool set_computed(std::vector<LayerPlan>& layers,
                  const std::vector<MemberKeeper::Computed>& computed);

/// Puts what is registered back in the place of weights that an earlier forward computed and the
/// next one computes again: their graph would keep the parameters that they were made of alive.
void forget_computed(const std::vector<LayerPlan>& layers,
                     const std::vector<MemberKeeper::Computed>& computed);

/// Layers that share a weight are cut alike: as a pattern or policy asks for one of them, else as
/// the first of them in the tree is. Throws when they are asked for different cuts.
void follow_ties(std::vector<LayerPlan>& layers);

}  // namespace oslo
