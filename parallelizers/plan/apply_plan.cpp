#include "parallelizers/plan/apply_plan.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <numeric>
#include <utility>

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
  if (auto* linear = layer.module->as<torch::nn::LinearImpl>())
    return {linear->weight, linear->bias};
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

void check_cuttable(const std::vector<LayerPlan>& layers) {
  std::map<const void*, std::pair<const c10::TensorImpl*, std::string>> owner_of;
  const auto check = [&](const at::Tensor& parameter, const std::string& name) {
    OSLO_CHECK(!torch::autograd::impl::try_get_grad_accumulator(parameter), "parameter ", name,
               " is part of an autograd graph that is still alive (an output kept from before, or "
               "an earlier DistributedDataParallel); let go of it before initialize");
    OSLO_CHECK(!parameter.grad().defined() || !parameter.grad().is_sparse(), "parameter ", name,
               " has a sparse gradient, which cannot be cut; call zero_grad() before initialize");
    if (parameter.numel() == 0 || parameter.is_meta()) return;
    const auto [owner, first] = owner_of.emplace(parameter.const_data_ptr(),
                                                 std::pair(parameter.unsafeGetTensorImpl(), name));
    OSLO_CHECK(first || owner->second.first == parameter.unsafeGetTensorImpl(), "parameters ",
               owner->second.second, " and ", name,
               " are two tensors over one memory, which "
               "cutting them would part; tie them by assigning the tensor itself");
  };
  for (const LayerPlan& layer : layers) {
    const Parameters parameters = parameters_of(layer);
    if (layer.weight_placement().is_shard()) check(parameters.weight, layer.parameter("weight"));
    if (parameters.bias.defined() && layer.bias_placement().is_shard()) {
      check(parameters.bias, layer.parameter("bias"));
    }
  }
}

AppliedPlan::AppliedPlan(std::vector<LayerPlan>& layers, const MeshPtr& mesh) {
  for (const LayerPlan& layer : layers) {
    const Parameters parameters = parameters_of(layer);
    cut(parameters.weight, layer.weight_placement(), layer.parameter("weight"), mesh);
    if (parameters.bias.defined()) {
      cut(parameters.bias, layer.bias_placement(), layer.parameter("bias"), mesh);
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
  Layout layout = make_layout(mesh, {placement}, parameter.sizes());
  if (layout.whole()) return;
  auto origin = std::make_shared<CutOrigin>(CutOrigin{name});
  layout[0].cut = std::make_shared<Cut>(layout[0].cut->runs(), origin);
  origins_[name] = std::move(origin);
  const at::Tensor gradient = parameter.grad();
  wholes_.push_back({parameter, unmarked_alias(parameter), gradient});
  const auto shared = std::make_shared<Layout>(std::move(layout));
  mark_parameter(parameter, shared, name);
  if (gradient.defined()) {  // goes on accumulating, as this rank's part
    parameter.mutable_grad() = marked_like(
        local_part(gradient.detach(), *shared).clone(at::MemoryFormat::Contiguous), parameter);
  }
}

void AppliedPlan::undo() {
  for (const Whole& whole : wholes_) {
    auto* impl = whole.parameter.unsafeGetTensorImpl();
    impl->shallow_copy_from(whole.original.getIntrusivePtr());
    impl->set_backend_meta(nullptr);
    whole.parameter.mutable_grad() = whole.gradient;
  }
  // Backwards: a layer that is registered twice had its padding on the first visit only.
  for (auto padding = paddings_.rbegin(); padding != paddings_.rend(); ++padding) {
    padding->layer->as<torch::nn::EmbeddingImpl>()->options.padding_idx(padding->row);
  }
  wholes_.clear();
  paddings_.clear();
}

bool AppliedPlan::take_wishes(std::vector<LayerPlan>& layers) const {
  bool changed = false;
  for (LayerPlan& layer : layers) {
    StyleText wanted = layer.style;
    for (const char* which : {"weight", "bias"}) {
      const auto found = origins_.find(layer.parameter(which));
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
  if (changed) follow_ties(layers);
  return changed;
}

void rewrite_tree(const std::vector<LayerPlan>& layers) {
  std::map<const torch::nn::Module*, std::shared_ptr<torch::nn::Module>> replacements;
  for (const LayerPlan& layer : layers) {
    if (layer.style.style == Style::replicate || !layer.parent) continue;
    if (mark_of(parameters_of(layer).weight) == nullptr) continue;
    auto& replacement = replacements[layer.module.get()];  // registered twice: stays one layer
    if (!replacement) replacement = parallel_layer(layer);
    if (!replacement) continue;
    replacement->train(layer.module->is_training());
    replace_child(*layer.parent, layer.name, replacement);
  }
}

}  // namespace oslo
