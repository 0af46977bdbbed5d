#include "parallelizers/plan/layers/structural_plan.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "mpu/base/error.h"

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
                 [](unsigned char c) { return tolower(c); });
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

void plan_linear(LayerPlan& layer, const std::string& name) {
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

void plan_embedding(LayerPlan& layer, const std::string& name) {
  for (const std::string_view small : kSmallTables) {
    if (name.find(small) == std::string::npos) continue;
    layer.why = "small table";
    return;
  }
  layer.style.style = Style::vocab;
  layer.why = "vocabulary";
}

}  // namespace

void plan_by_structure(std::vector<LayerPlan>& layers) {
  for (LayerPlan& layer : layers) {
    if (layer.axis.empty() && layer.why.empty()) {
      layer.why = "several axes cut layers, and the plan says of none how";
    }
    if (!layer.view.stays_whole.empty() && layer.why.empty()) layer.why = layer.view.stays_whole;
    if (!layer.free()) continue;
    const std::string name = lower(layer.name);
    switch (layer.kind) {
      case LayerKind::linear:
        plan_linear(layer, name);
        break;
      case LayerKind::embedding:
        plan_embedding(layer, name);
        break;
      case LayerKind::attention:
        layer.style = {Style::column, /*blocks=*/3, layer.view.head_size};
        layer.why = "queries, keys and values, in whole heads";
        break;
      case LayerKind::convolution:
        if (layer.embeds_patches()) {
          layer.why = "embeds patches: a small table";
          break;
        }
        layer.style.style = Style::column;
        if (layer.groups() > 1) layer.style.unit = layer.weight().size(0) / layer.groups();
        layer.why = "by output channels";
        break;
      case LayerKind::recurrent:
        layer.why = "recurrent: a gather at every step, whose worth an example tells";
        break;
      case LayerKind::parameter:
        layer.why = "a parameter of the module itself, which its code may read the sizes of";
        break;
    }
  }
}

}  // namespace oslo
