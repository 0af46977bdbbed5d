#include "parallelizers/plan/apply_plan.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <numeric>

#include "mpu/error.h"
#include "parallelizers/placement/layout.h"
#include "parallelizers/placement/mark.h"
#include "parallelizers/tensor/embedding.h"
#include "parallelizers/tensor/linear.h"
#include "parallelizers/tensor/module_tree.h"

namespace oslo {
namespace {

struct Parameters {
  at::Tensor weight, bias;
};

Parameters parameters_of(const LayerPlan& layer) {
  if (auto* linear = layer.module->as<torch::nn::LinearImpl>()) return {linear->weight, linear->bias};
  return {layer.module->as<torch::nn::EmbeddingImpl>()->weight, {}};
}

std::shared_ptr<torch::nn::Module> parallel_layer(const LayerPlan& layer) {
  if (const auto* embedding = layer.module->as<torch::nn::EmbeddingImpl>()) {
    if (layer.style.style != Style::vocab) return nullptr;  // its table is cut, its class stays
    return std::make_shared<nn::VocabParallelEmbeddingImpl>(*embedding);
  }
  const auto& linear = *layer.module->as<torch::nn::LinearImpl>();
  if (layer.style.style == Style::row) return std::make_shared<nn::RowParallelLinearImpl>(linear);
  return std::make_shared<nn::ColumnParallelLinearImpl>(linear);
}

}  // namespace

AppliedPlan::AppliedPlan(std::vector<LayerPlan>& layers, const MeshPtr& mesh) {
  for (const LayerPlan& layer : layers) {
    const Parameters parameters = parameters_of(layer);
    cut(parameters.weight, layer.weight_placement(), layer.path + ".weight", mesh);
    if (parameters.bias.defined()) {
      cut(parameters.bias, layer.bias_placement(), layer.path + ".bias", mesh);
    }
    if (auto* embedding = layer.module->as<torch::nn::EmbeddingImpl>()) {
      paddings_.push_back({layer.module, embedding->options.padding_idx()});
      nn::move_padding_to_mark(*embedding);
    }
  }
}

void AppliedPlan::cut(const at::Tensor& parameter, const Placement& placement,
                      const std::string& name, const MeshPtr& mesh) {
  if (!placement.is_shard()) return;
  if (mark_of(parameter) != nullptr) return;  // tied to an earlier layer
  OSLO_CHECK(!torch::autograd::impl::try_get_grad_accumulator(parameter), "parameter ", name,
             " is part of an autograd graph that is still alive (an output kept from before, or an "
             "earlier DistributedDataParallel); let go of it before initialize");
  Layout layout = make_layout(mesh, {placement}, parameter.sizes());
  if (layout.whole()) return;
  auto origin = std::make_shared<CutOrigin>(CutOrigin{name});
  layout[0].cut = std::make_shared<Cut>(layout[0].cut->runs(), origin);
  origins_[name] = std::move(origin);
  wholes_.push_back({parameter, unmarked_alias(parameter)});
  parameter.mutable_grad() = at::Tensor();
  mark_parameter(parameter, std::make_shared<Layout>(std::move(layout)), name);
}

void AppliedPlan::undo() {
  for (const Whole& whole : wholes_) {
    whole.parameter.unsafeGetTensorImpl()->shallow_copy_from(whole.original.getIntrusivePtr());
  }
  for (const Padding& padding : paddings_) {
    padding.layer->as<torch::nn::EmbeddingImpl>()->options.padding_idx(padding.row);
  }
  wholes_.clear();
  paddings_.clear();
}

bool AppliedPlan::take_wishes(std::vector<LayerPlan>& layers) const {
  bool changed = false;
  for (LayerPlan& layer : layers) {
    StyleText wanted = layer.style;
    for (const char* suffix : {".weight", ".bias"}) {
      const auto found = origins_.find(layer.path + suffix);
      if (found == origins_.end()) continue;
      wanted.blocks = std::max(wanted.blocks, found->second->wanted_blocks);
      wanted.unit = std::lcm(wanted.unit, found->second->wanted_unit);
    }
    const bool differs = wanted.blocks != layer.style.blocks || wanted.unit != layer.style.unit;
    const bool cuts = wanted.style == Style::column || wanted.style == Style::row;
    if (!differs || !cuts || layer.cut_size() % (wanted.blocks * wanted.unit) != 0) continue;
    layer.style = wanted;
    layer.why += c10::str(layer.why.empty() ? "" : "; ", "the example asks for blocks ",
                          wanted.blocks, ", unit ", wanted.unit);
    changed = true;
  }
  return changed;
}

void rewrite_tree(const std::vector<LayerPlan>& layers) {
  for (const LayerPlan& layer : layers) {
    if (layer.style.style == Style::replicate || !layer.parent) continue;
    if (mark_of(parameters_of(layer).weight) == nullptr) continue;
    if (auto replacement = parallel_layer(layer)) {
      replacement->train(layer.module->is_training());
      replace_child(*layer.parent, layer.name, std::move(replacement));
    }
  }
}

}  // namespace oslo
