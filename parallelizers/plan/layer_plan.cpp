#include "parallelizers/plan/layer_plan.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <map>

#include "mpu/error.h"
#include "parallelizers/tensor/module_tree.h"

namespace oslo {
namespace {

const at::Tensor& weight_of(const LayerPlan& layer) {
  if (const auto* linear = layer.module->as<torch::nn::LinearImpl>()) return linear->weight;
  return layer.module->as<torch::nn::EmbeddingImpl>()->weight;
}

/// The style that cuts a shared weight as `leader` does, in the words of the other layer's class.
StyleText tied_style(const LayerPlan& leader, bool embedding) {
  StyleText style = leader.style;
  const Placement placement = leader.weight_placement();
  if (!placement.is_shard()) return style;
  if (placement.dim() == 0) {
    style.style = embedding ? Style::vocab : Style::column;
  } else {
    style.style = embedding ? Style::column : Style::row;
  }
  return style;
}

}  // namespace

bool LayerPlan::embedding() const {
  return module->as<torch::nn::EmbeddingImpl>() != nullptr;
}

std::string LayerPlan::parameter(const char* which) const {
  return join_path(path, which);
}

Placement LayerPlan::weight_placement() const {
  if (style.style == Style::replicate) return Placement::replicate();
  const bool first = embedding() ? style.style == Style::vocab : style.style != Style::row;
  return Placement::shard(first ? 0 : 1, style.blocks, style.unit);
}

Placement LayerPlan::bias_placement() const {
  const bool cut = !embedding() && (style.style == Style::column || style.style == Style::vocab);
  return cut ? Placement::shard(0, style.blocks, style.unit) : Placement::replicate();
}

int64_t LayerPlan::cut_size() const {
  const Placement placement = weight_placement();
  if (!placement.is_shard()) return 0;
  if (const auto* linear = module->as<torch::nn::LinearImpl>()) {
    return placement.dim() == 0 ? linear->options.out_features() : linear->options.in_features();
  }
  const auto& options = module->as<torch::nn::EmbeddingImpl>()->options;
  return placement.dim() == 0 ? options.num_embeddings() : options.embedding_dim();
}

std::vector<LayerPlan> plannable_layers(const std::shared_ptr<torch::nn::Module>& root) {
  std::vector<LayerPlan> layers;
  for (const ModuleEntry& entry : module_entries(root)) {
    const bool plannable = entry.module->as<torch::nn::LinearImpl>() != nullptr ||
                           entry.module->as<torch::nn::EmbeddingImpl>() != nullptr;
    if (!plannable) continue;
    layers.push_back({entry.path, entry.name, entry.module, entry.parent, {}, "", false});
  }
  return layers;
}

void follow_ties(std::vector<LayerPlan>& layers) {
  std::map<const c10::TensorImpl*, std::vector<LayerPlan*>> sharing;
  for (LayerPlan& layer : layers) sharing[weight_of(layer).unsafeGetTensorImpl()].push_back(&layer);
  for (const auto& [weight, group] : sharing) {
    if (group.size() < 2) continue;
    LayerPlan* leader = group.front();
    for (auto layer = group.rbegin(); layer != group.rend(); ++layer) {
      if ((*layer)->asked_for) leader = *layer;
    }
    for (LayerPlan* layer : group) {
      if (layer == leader) continue;
      const StyleText style = tied_style(*leader, layer->embedding());
      LayerPlan tied = *layer;
      tied.style = style;
      OSLO_CHECK(!layer->asked_for || layer->weight_placement() == tied.weight_placement(),
                 layer->why, ": ", layer->path, " shares its weight with ", leader->path,
                 ", which is planned as ", oslo::to_string(leader->style.style),
                 "; plan both alike");
      layer->style = style;
      if (layer == group.front() || layer->why.rfind("tied to ", 0) != 0) {
        layer->why = "tied to " + leader->path;
      }
      layer->asked_for = false;
    }
    // From now on the first one leads, also when the example asks for other blocks.
    if (leader != group.front()) leader->asked_for = false;
  }
}

}  // namespace oslo
