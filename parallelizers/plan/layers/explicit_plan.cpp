#include "parallelizers/plan/layers/explicit_plan.h"

#include <algorithm>

#include "mpu/base/error.h"
#include "parallelizers/modules/module_tree.h"
#include "parallelizers/modules/path_components.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/layout/layout.h"
#include "parallelizers/plan/layers/planned_uses.h"

namespace oslo {
namespace {

int64_t stars(const std::string& pattern) {
  return std::count(pattern.begin(), pattern.end(), '*');
}

/// How many letters two paths have in common, from both ends: enough to find a typo's neighbour.
size_t likeness(const std::string& a, const std::string& b) {
  size_t front = 0, back = 0;
  while (front < a.size() && front < b.size() && a[front] == b[front]) ++front;
  while (back + front < a.size() && back + front < b.size() &&
         a[a.size() - 1 - back] == b[b.size() - 1 - back]) {
    ++back;
  }
  return front + back;
}

std::string nearest_path(const std::vector<LayerPlan>& layers, const std::string& pattern) {
  std::string best;
  for (const LayerPlan& layer : layers) {
    if (best.empty() || likeness(layer.path, pattern) > likeness(best, pattern)) best = layer.path;
  }
  return best;
}

/// A broad pattern speaks of layers or of parameters, by its style.
bool speaks_of(const std::string& pattern, const AxisStyles& styles, const LayerPlan& layer) {
  if (stars(pattern) == 0) return true;
  if (layer.computed || layer.decided || !layer.view.stays_whole.empty()) return false;
  return std::all_of(styles.begin(), styles.end(), [&](const auto& style) {
    return style.second.style == Style::replicate || layer.traits().meant(style.second.style);
  });
}

void plan_one(LayerPlan& layer, const AxisStyles& styles, const std::string& why) {
  layer.set_styles(styles);
  const auto by_gate = [&](LayerStyle& style) {  // without being told
    if (style.style == Style::column && style.blocks == 1) style.blocks = layer.view.gates;
  };
  by_gate(layer.style);
  for (auto& [axis, style] : layer.other_styles) by_gate(style);
  layer.why = why;
  layer.asked_for = true;
}

}  // namespace

void plan_by_patterns(std::vector<LayerPlan>& layers, const PlanPatterns& patterns) {
  auto ordered = patterns;
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return stars(a.first) > stars(b.first); });
  for (const auto& [pattern, text] : ordered) {
    const std::string where = "plan pattern \"" + pattern + "\"";
    const AxisStyles styles = parse_axis_styles(text, where);
    bool found = false;
    for (LayerPlan& layer : layers) {
      if (!matches_path(pattern, layer.path) || !speaks_of(pattern, styles, layer)) continue;
      plan_one(layer, styles, where);
      found = true;
    }
    OSLO_CHECK_AS(
        config, found, where, " matches no layer or parameter of the model that can be cut",
        layers.empty() ? "" : "; the nearest path is \"" + nearest_path(layers, pattern) + "\"",
        " (* stands for one component of a path)");
  }
}

namespace {

/// Two models may share a layer and a config: what the first one decided is what the second one's
/// plan has to say.
void check_decided(LayerPlan& layer, const PlanAxes& axes) {
  const Mark* mark = mark_of(layer.weight());
  bool same = !layer.cuts_weight();
  if (mark != nullptr) {
    std::vector<Placement> asked;
    for (const Axis& axis : axes.axes) {
      asked.push_back(layer.weight_placement(layer.style_on(axis.name)));
    }
    const auto sizes = mark->layout->global_sizes(layer.weight().sizes());
    same = make_layout(mark->layout->context(), asked, sizes) == *mark->layout;
  }
  OSLO_CHECK_AS(config, same, layer.why, ": ", layer.path,
                " was decided by an earlier initialize, of a model that has it too: ",
                mark == nullptr ? "whole" : mark->layout->to_string(), "; plan both alike");
  layer.set_styles({});
  layer.asked_for = false;
}

void check_axes(const LayerPlan& layer, const PlanAxes& axes) {
  OSLO_CHECK_AS(config, !axes.searched.empty() || layer.style == LayerStyle{}, layer.why, ": ",
                layer.path, " may be cut over ", axes.names(), "; say over which, as in \"",
                axes.axes.front().name, ": ", layer.style.name(), "\"");
  for (const auto& [name, style] : layer.other_styles) {
    OSLO_CHECK_AS(config, axes.has(name), layer.why, ": ", name,
                  " is no axis that layers are cut over; these are ", axes.names());
  }
}

void check_style(const LayerPlan& layer, const LayerStyle& style) {
  OSLO_CHECK_AS(config, layer.view.stays_whole.empty() || style.style == Style::replicate,
                layer.why, ": ", layer.path, " is ", layer.view.stays_whole,
                ", and stays whole; use replicate");
  if (layer.traits().check != nullptr) layer.traits().check(layer, style);
  OSLO_CHECK_AS(config, layer.parameter() || style.style != Style::shard, layer.why, ": ",
                layer.path, " is a layer; use column, row, vocab or replicate");
  OSLO_CHECK_AS(config, style.style != Style::shard || style.dim < layer.weight().dim(), layer.why,
                ": ", layer.path, " has ", layer.weight().dim(),
                " dimensions, counted from 0; seen ", style.name());
  const int64_t size = layer.cut_size(style), step = style.blocks * style.unit;
  OSLO_CHECK_AS(config, size % step == 0, layer.why, ": ", layer.path, " has ", size,
                " features to cut, which are not a multiple of blocks ", style.blocks, " x unit ",
                style.unit);
}

}  // namespace

void check_asked(std::vector<LayerPlan>& layers, const PlanAxes& axes) {
  for (LayerPlan& layer : layers) {
    if (!layer.asked_for) continue;
    // Over sequences alone there is nothing that a style without an axis could mean.
    if (axes.ranks_of_weights() == 1 && axes.searched.empty()) {
      layer.style = {};
      layer.use = {};
    }
    check_axes(layer, axes);
    if (layer.computed) layer.set_computed();  // throws
    check_style(layer, layer.style);
    for (const auto& [name, style] : layer.other_styles) check_style(layer, style);
    check_use(layer);
    if (layer.decided) check_decided(layer, axes);
  }
}

void plan_by_policies(std::vector<LayerPlan>& layers, const ModelView& model,
                      const std::vector<Policy>& policies) {
  for (const Policy& policy : policies) {
    bool met = false;
    for (const ModuleView& entry : model.modules()) {
      if (!entry.module || !policy.applies(*entry.module)) continue;
      met = true;
      for (const auto& [pattern, text] : policy.patterns) {
        const std::string where = "policy for " + policy.class_name + ", \"" + pattern + "\"";
        const AxisStyles styles = parse_axis_styles(text, where);
        bool found = false;
        for (LayerPlan& layer : layers) {
          if (!matches_path(join_path(entry.path, pattern), layer.path)) continue;
          if (!speaks_of(pattern, styles, layer)) continue;
          plan_one(layer, styles, where);
          found = true;
        }
        OSLO_CHECK_AS(config, found, where,
                      " matches no layer or parameter that can be cut inside ",
                      entry.path.empty() ? "the model" : entry.path);
      }
    }
    OSLO_CHECK_AS(config, met, "policy for ", policy.class_name,
                  ": the model has no module of this class");
  }
}

}  // namespace oslo
