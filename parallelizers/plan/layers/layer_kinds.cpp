// The kinds of layers, each by its functions; the table is at the end.
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <string>
#include <string_view>

#include "mpu/base/error.h"
#include "parallelizers/layers/embedding.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/layers/layer_traits.h"

namespace oslo {
namespace {

/// Second projections: the last component of a path, as published models name them.
constexpr std::array<std::string_view, 22> kRowNames = {
    "c_proj", "o_proj",  "out_proj", "down_proj", "dense_4h_to_h", "fc2",       "fc_out", "wo",
    "w2",     "out",     "to_out",   "proj",      "proj_out",      "linear2",   "lin2",   "down",
    "o",      "out_lin", "output",   "dense2",    "o_lin",         "projection"};

constexpr std::array<std::string_view, 10> kFusedNames = {
    "c_attn", "qkv",     "qkv_proj", "query_key_value", "in_proj", "wqkv",
    "to_qkv", "qkv_lin", "kv",       "gate_up_proj"};

constexpr std::array<std::string_view, 6> kSmallTables = {"position", "wpe",     "pos",
                                                          "type",     "segment", "time"};

template <size_t N>
bool holds(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// "dense" is both in BERT: the second projection of attention and of "output", the first of
/// "intermediate", and a lone layer in "pooler" or a head.
bool is_row_dense(const std::string& path, const std::string& name) {
  if (name != "dense") return false;
  for (const char* first : {"intermediate", "pooler", "transform", "head", "classifier"}) {
    if (path.find(first) != std::string::npos) return false;
  }
  return true;
}

void plan_linear(LayerPlan& layer) {
  const std::string name = lower(layer.name);
  const int64_t outputs = layer.weight().size(0), inputs = layer.weight().size(1);
  if (holds(kRowNames, name) || is_row_dense(lower(layer.path), name)) {
    layer.style.style = Style::row;
    layer.why = "named like a second projection";
    return;
  }
  layer.style.style = Style::column;
  layer.why = "first projection";
  if (!holds(kFusedNames, name)) return;
  for (const int64_t blocks : {3, 2}) {
    const bool fits =
        name == "kv" || name == "gate_up_proj" ? blocks == 2 : outputs == blocks * inputs;
    if (!fits || outputs % blocks != 0) continue;
    layer.style.blocks = blocks;
    layer.why = c10::str("named like a fused projection of ", blocks);
    return;
  }
}

void plan_embedding(LayerPlan& layer) {
  const std::string name = lower(layer.name);
  for (const std::string_view small : kSmallTables) {
    if (name.find(small) == std::string::npos) continue;
    layer.why = "small table";
    return;
  }
  layer.style.style = Style::vocab;
  layer.why = "vocabulary";
}

std::vector<LayerStyle> linear_options(const LayerPlan&, int) {
  return {{Style::column}, {Style::row}};
}

bool is_of_layers(Style style) {
  return style != Style::shard;
}

const char* linear_class(Style style) {
  return style == Style::row ? "oslo::nn::RowParallelLinear" : "oslo::nn::ColumnParallelLinear";
}

std::vector<LayerStyle> embedding_options(const LayerPlan&, int) {
  return {{Style::vocab}, {Style::column}};
}

void check_embedding(const LayerPlan& layer, const LayerStyle& style) {
  OSLO_CHECK_AS(config, style.style != Style::row, layer.why, ": ", layer.path,
                " is an embedding, which has no input features to cut; use vocab or column");
}

void after_cut_of_embedding(torch::nn::Module& module) {
  auto* embedding = module.as<torch::nn::EmbeddingImpl>();
  if (embedding == nullptr) return;
  nn::move_padding_to_mark(*embedding);
  // It served; kept, `clone` would take the part for a table.
  if (mark_of(embedding->weight) != nullptr) embedding->options._weight(at::Tensor());
}

const char* embedding_class(Style style) {
  return style == Style::vocab ? "oslo::nn::VocabParallelEmbedding" : "";
}

void plan_convolution(LayerPlan& layer) {
  if (layer.embeds_patches()) {
    layer.why = "embeds patches: a small table";
    return;
  }
  layer.style.style = Style::column;
  if (layer.groups() > 1) layer.style.unit = layer.weight().size(0) / layer.groups();
  layer.why = "by output channels";
}

std::vector<LayerStyle> convolution_options(const LayerPlan& layer, int) {
  if (layer.groups() == 1) return {{Style::column}, {Style::row}};
  return {{Style::column, 1, layer.weight().size(0) / layer.groups()}};
}

void check_convolution(const LayerPlan& layer, const LayerStyle& style) {
  OSLO_CHECK_AS(config, layer.groups() == 1 || style.style != Style::row, layer.why, ": ",
                layer.path, " is a convolution in ", layer.groups(),
                " groups, which cannot be cut by row");
}

void plan_transposed(LayerPlan& layer) {
  layer.why = "a transposed convolution: by inputs or outputs, which an example tells";
}

void plan_attention(LayerPlan& layer) {
  layer.style = {Style::column, /*blocks=*/3, layer.view.head_size};
  layer.why = "queries, keys and values, in whole heads";
}

std::vector<LayerStyle> attention_options(const LayerPlan& layer, int) {
  return {layer.style};
}

void check_attention(const LayerPlan& layer, const LayerStyle& style) {
  OSLO_CHECK_AS(config, style.style != Style::row, layer.why, ": ", layer.path,
                " projects queries, keys and values, whose input is whole; use "
                "column blocks=3");
}

void plan_recurrent(LayerPlan& layer) {
  layer.why = "recurrent: a gather at every step, whose worth an example tells";
}

std::vector<LayerStyle> recurrent_options(const LayerPlan& layer, int ranks) {
  if (layer.weight().size(0) / layer.view.gates < ranks) return {};
  return {{Style::column, layer.view.gates}};
}

bool is_column(Style style) {
  return style == Style::column;
}

void check_recurrent(const LayerPlan& layer, const LayerStyle& style) {
  OSLO_CHECK_AS(config,
                style.style == Style::replicate ||
                    (style.style == Style::column && style.blocks == layer.view.gates),
                layer.why, ": ", layer.path, " is a recurrent layer with ", layer.view.gates,
                " gates, which is cut by hidden unit: use column or replicate; seen ", style.name(),
                " blocks=", style.blocks);
}

void plan_parameter(LayerPlan& layer) {
  layer.why = "a parameter of the module itself, which its code may read the sizes of";
}

std::vector<LayerStyle> parameter_options(const LayerPlan& layer, int) {
  std::vector<LayerStyle> options;
  for (int64_t dim = 0; dim < layer.weight().dim(); ++dim) {
    options.push_back({Style::shard, 1, 1, dim});
  }
  return options;
}

bool is_shard(Style style) {
  return style == Style::shard;
}

void check_parameter(const LayerPlan& layer, const LayerStyle& style) {
  OSLO_CHECK_AS(config, style.style == Style::shard || style.style == Style::replicate, layer.why,
                ": ", layer.path,
                " is a parameter, not a layer; use shard(dimension) or replicate");
}

// In the order of `LayerKind`.
constexpr LayerTraits kLayerKinds[] = {
    {.kind = LayerKind::linear,
     .first = Style::column,
     .second = Style::row,
     .one_result = true,
     .guesses_blocks = true,
     .plan = plan_linear,
     .options = linear_options,
     .meant = is_of_layers,
     .parallel_class = linear_class},
    {.kind = LayerKind::embedding,
     .first = Style::vocab,
     .second = Style::column,
     .one_result = true,
     .plan = plan_embedding,
     .options = embedding_options,
     .meant = is_of_layers,
     .check = check_embedding,
     .after_cut = after_cut_of_embedding,
     .parallel_class = embedding_class},
    {.kind = LayerKind::convolution,
     .first = Style::column,
     .second = Style::row,
     .one_result = true,
     .plan = plan_convolution,
     .options = convolution_options,
     .meant = is_of_layers,
     .check = check_convolution},
    // Its weight has the inputs first.
    {.kind = LayerKind::transposed,
     .first = Style::row,
     .second = Style::column,
     .plan = plan_transposed,
     .options = linear_options,
     .meant = is_of_layers},
    {.kind = LayerKind::attention,
     .first = Style::column,
     .second = Style::row,
     .plan = plan_attention,
     .options = attention_options,
     .meant = is_of_layers,
     .check = check_attention},
    {.kind = LayerKind::recurrent,
     .first = Style::column,
     .second = Style::row,
     .recurrent = true,
     .plan = plan_recurrent,
     .options = recurrent_options,
     .meant = is_column,
     .check = check_recurrent},
    {.kind = LayerKind::parameter,
     .first = Style::shard,
     .second = Style::shard,
     .bare = true,
     .plan = plan_parameter,
     .options = parameter_options,
     .meant = is_shard,
     .check = check_parameter},
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kLayerKinds); ++i) {
    if (kLayerKinds[i].kind != static_cast<LayerKind>(i)) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

const LayerTraits& traits_of(LayerKind kind) {
  return kLayerKinds[static_cast<size_t>(kind)];
}

}  // namespace oslo
