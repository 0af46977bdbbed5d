#include "parallelizers/plan/layers/planned_uses.h"

#include <algorithm>

#include "mpu/base/error.h"

namespace oslo {
namespace {

void check_use_on(const LayerPlan& layer, const LayerStyle& style, const AxisUse& use) {
  if (use == AxisUse{}) return;
  const bool scatters = use.result == AxisUse::Result::scatter;
  OSLO_CHECK_AS(config, !scatters || style.style != Style::vocab || layer.embedding(), layer.why,
                ": ", layer.path,
                " is a linear layer, whose result vocab cuts: it is no sum to scatter; use vocab "
                "alone, or row scatter=D");
  OSLO_CHECK_AS(config, layer.traits().one_result, layer.why, ": ", layer.path,
                " is no layer with one result; scatter=D, split=D and input=D are for linear, "
                "embedding and convolution layers");
}

}  // namespace

void check_use(const LayerPlan& layer) {
  check_use_on(layer, layer.style, layer.use);
  for (const auto& [axis, style] : layer.other_styles) check_use_on(layer, style, style.use);
}

bool joins_sum(const LayerPlan& layer) {
  return layer.use.joins();
}

bool says_use(const LayerPlan& layer) {
  return (layer.use != AxisUse{} && layer.use.result != AxisUse::Result::join) ||
         std::any_of(layer.other_styles.begin(), layer.other_styles.end(),
                     [](const auto& other) { return other.second.use != AxisUse{}; });
}

PlannedUses planned_uses(const std::vector<LayerPlan>& layers, const Mesh& mesh) {
  PlannedUses uses;
  const bool said = std::any_of(layers.begin(), layers.end(), says_use);
  if (!said && std::none_of(layers.begin(), layers.end(), joins_sum)) return uses;
  std::map<const c10::TensorImpl*, WeightUses> by_weight;
  for (const LayerPlan& layer : layers) {
    const bool own = says_use(layer) || joins_sum(layer);
    if (layer.computed || (!own && !(said && layer.cuts_weight()))) continue;
    WeightUses& weight = by_weight[layer.weight().unsafeGetTensorImpl()];
    if (weight.planned.empty()) weight.planned = layer.why + ": " + layer.path;
    weight.product.resize(mesh.axes());
    weight.lookup.resize(mesh.axes());
    weight.gathers_again |= layer.gathers_again;
    if (!own) continue;
    for (int axis = 0; axis < mesh.axes(); ++axis) {
      (layer.embedding() ? weight.lookup : weight.product)[axis] =
          layer.use_on(mesh.axis(axis)->name());
    }
  }
  for (auto& [weight, own] : by_weight) {
    uses[weight] = std::make_shared<const WeightUses>(std::move(own));
  }
  return uses;
}

}  // namespace oslo
