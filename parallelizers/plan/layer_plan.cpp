#include "parallelizers/plan/layer_plan.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <sstream>

#include "mpu/error.h"
#include "parallelizers/tensor/module_tree.h"

namespace oslo {
namespace {

const at::Tensor& weight_of(const LayerPlan& layer) {
  if (const auto* linear = layer.module->as<torch::nn::LinearImpl>()) return linear->weight;
  return layer.module->as<torch::nn::EmbeddingImpl>()->weight;
}

}  // namespace

std::string to_string(Style style) {
  switch (style) {
    case Style::column: return "column";
    case Style::row: return "row";
    case Style::vocab: return "vocab";
    default: return "replicate";
  }
}

StyleText StyleText::parse(const std::string& text, const std::string& where) {
  std::istringstream words(text);
  std::string word;
  words >> word;
  StyleText parsed;
  bool known = false;
  for (const Style style : {Style::replicate, Style::column, Style::row, Style::vocab}) {
    if (word != oslo::to_string(style)) continue;
    parsed.style = style;
    known = true;
  }
  OSLO_CHECK(known, where, ": \"", text, "\" is no placement; write column, row, vocab or "
             "replicate, the first two optionally with blocks=N and unit=N");
  while (words >> word) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string digits = equals == std::string::npos ? "" : word.substr(equals + 1);
    const bool number = !digits.empty() && digits.size() < 10 &&
                        digits.find_first_not_of("0123456789") == std::string::npos;
    const bool cuts = parsed.style == Style::column || parsed.style == Style::row;
    OSLO_CHECK(cuts && number && std::stoll(digits) > 0 && (key == "blocks" || key == "unit"),
               where, ": cannot read \"", word, "\" in \"", text,
               "\"; column and row take blocks=N and unit=N with N at least 1");
    (key == "blocks" ? parsed.blocks : parsed.unit) = std::stoll(digits);
  }
  return parsed;
}

bool LayerPlan::embedding() const { return module->as<torch::nn::EmbeddingImpl>() != nullptr; }

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
  std::map<const c10::TensorImpl*, LayerPlan*> first_of;
  for (LayerPlan& layer : layers) {
    LayerPlan*& first = first_of[weight_of(layer).unsafeGetTensorImpl()];
    if (first == nullptr) {
      first = &layer;
      continue;
    }
    StyleText style = first->style;
    const Placement placement = first->weight_placement();
    if (placement.is_shard()) {
      style.style = placement.dim() == 0 ? (layer.embedding() ? Style::vocab : Style::column)
                                         : (layer.embedding() ? Style::column : Style::row);
    }
    LayerPlan tied = layer;
    tied.style = style;
    OSLO_CHECK(!layer.asked_for || layer.weight_placement() == tied.weight_placement(), layer.why,
               ": ", layer.path, " shares its weight with ", first->path, ", which is planned as ",
               oslo::to_string(first->style.style), "; plan both alike");
    tied.why = "tied to " + first->path;
    layer = std::move(tied);
  }
}

}  // namespace oslo
