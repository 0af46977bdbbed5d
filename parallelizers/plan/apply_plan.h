#pragma once

#include <map>
#include <optional>

#include "mpu/mesh.h"
#include "parallelizers/plan/layer_plan.h"
#include "parallelizers/plan/plan.h"

namespace oslo {

/// Throws, naming the parameter, when one that the plan cuts cannot be changed in place: it is part
/// of a live graph, shares its memory with another tensor, or has a sparse gradient.
void check_cuttable(const std::vector<LayerPlan>& layers);

/// Cuts the parameters of planned layers in place, and can undo it as long as it lives: it keeps
/// the whole parameters. Their gradients are cut with them. Tied parameters are cut once, as the
/// first layer in the tree says.
class AppliedPlan {
 public:
  AppliedPlan(std::vector<LayerPlan>& layers, const MeshPtr& mesh);

  /// Makes every parameter whole again.
  void undo();

  /// Whether operators asked for other blocks or units than the layers have; takes the wishes over
  /// into them where they divide the dimension.
  bool take_wishes(std::vector<LayerPlan>& layers) const;

 private:
  void cut(const at::Tensor& parameter, const Placement& placement, const std::string& name,
           const MeshPtr& mesh);

  struct Whole {
    at::Tensor parameter;
    at::Tensor original;  ///< over the whole storage
    at::Tensor gradient;
  };
  struct Padding {
    std::shared_ptr<torch::nn::Module> layer;
    std::optional<int64_t> row;
  };
  std::vector<Whole> wholes_;
  std::vector<Padding> paddings_;  ///< of embeddings, which the marks carry while they are cut
  std::map<std::string, std::shared_ptr<CutOrigin>> origins_;  ///< by parameter name
};

/// Replaces planned layers by the parallel layers that share their parameters.
void rewrite_tree(const std::vector<LayerPlan>& layers);

}  // namespace oslo
