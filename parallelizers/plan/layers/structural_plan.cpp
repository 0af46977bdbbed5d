#include "parallelizers/plan/layers/structural_plan.h"

namespace oslo {

void plan_by_structure(std::vector<LayerPlan>& layers) {
  for (LayerPlan& layer : layers) {
    if (layer.axis.empty() && layer.why.empty()) {
      layer.why = "several axes cut layers, and the plan says of none how";
    }
    if (!layer.view.stays_whole.empty() && layer.why.empty()) layer.why = layer.view.stays_whole;
    if (layer.free()) layer.traits().plan(layer);
  }
}

}  // namespace oslo
