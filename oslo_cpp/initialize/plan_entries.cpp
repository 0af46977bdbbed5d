#include "oslo_cpp/initialize/plan_entries.h"

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <map>
#include <string>
#include <utility>

#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/layout/sharded_weight.h"
#include "parallelizers/placement/residency/stage_set.h"
#include "parallelizers/plan/apply/parallel_class.h"

namespace oslo {
namespace {

/// "row shard(1); column shard(0)".
std::string placements_text(const LayerPlan& layer, const Mesh& mesh, bool weight) {
  const auto placements = weight ? layer.weight_placements(mesh) : layer.bias_placements(mesh);
  std::string text;
  for (int axis = 0; axis < mesh.axes(); ++axis) {
    const std::string& name = mesh.axis(axis)->name();
    const std::string use = weight ? use_text(layer.use_on(name)) : "";
    if (!placements[axis].is_shard() && use.empty()) continue;
    text += c10::str(text.empty() ? "" : "; ", name, " ", placements[axis].to_string(), use);
  }
  return text.empty() ? "replicate" : text;
}

std::string placement_text(const LayerPlan* layer, const at::Tensor& parameter) {
  const Mark* mark = mark_of(parameter);
  if (mark == nullptr) return "replicate";
  const Layout& lies = *mark->layout;
  const bool for_cuts = !lies.resident() && !lies.followed() && !mark->sharded;
  if (!for_cuts && lies.whole() && !mark->uses) return "replicate";
  if (layer == nullptr || layer->decided) return mark->layout->to_string();
  const bool weight = parameter.dim() > 1;
  if (!layer->other_styles.empty()) return placements_text(*layer, mark->layout->mesh(), weight);
  const Placement placement = weight ? layer->weight_placement() : layer->bias_placement();
  if (layer->parameter()) return placement.to_string();
  return to_string(layer->style.style) + ": " + placement.to_string() +
         (weight ? use_text(layer->use) : "");
}

/// How a weight that data replicas have parts of comes to be whole; empty of any other.
std::string sharded_text(const Mark* mark) {
  if (mark == nullptr || !mark->sharded) return "";
  const Layout& lies = *mark->layout;
  const int replicas = lies.context()->replica_axis;
  if (replicas < 0 || lies[replicas].whole()) return "";
  return c10::str(
      "; ", lies.group(replicas)->size(), " data ranks ",
      mark->sharded->needs_replicas() ? "gather their parts" : "share one copy on their host");
}

}  // namespace

std::vector<PlanEntry> entries_of(const ModelView& model, const std::vector<LayerPlan>& layers) {
  std::map<std::string, const LayerPlan*> by_path;
  for (const LayerPlan& layer : layers) by_path[layer.path] = &layer;
  std::map<const c10::TensorImpl*, std::string> first_name;
  std::vector<PlanEntry> entries;
  for (const ParameterView& each : model.parameters()) {
    const ModuleView& entry = model.modules()[each.module];
    const at::Tensor& parameter = each.in_use();
    const Mark* mark = mark_of(parameter);
    PlanEntry line;
    line.parameter = each.path;
    auto found = by_path.find(line.parameter);
    if (found == by_path.end()) found = by_path.find(entry.path);
    const LayerPlan* layer = found == by_path.end() ? nullptr : found->second;
    line.module = entry.path;
    line.module_before = entry.class_name;
    line.module_after = layer == nullptr ? "" : parallel_class(*layer);
    if (line.module_after.empty()) line.module_after = entry.class_name;
    line.placement = placement_text(layer, parameter);
    line.why = layer == nullptr  ? "not in a layer that can be cut"
               : !layer->decided ? layer->why
                                 : "decided by an earlier initialize";
    line.why += sharded_text(mark);
    line.local_shape = parameter.sizes().vec();
    line.global_shape = line.local_shape;
    if (mark != nullptr) {
      const auto global = mark->layout->global_sizes(parameter.sizes());
      line.global_shape.assign(global.begin(), global.end());
    }
    const auto element = static_cast<int64_t>(parameter.element_size());
    line.local_bytes = is_here(parameter) ? parameter.numel() * element : 0;
    if (mark != nullptr && mark->layout->resident()) {
      const StageSet stages = mark->layout->stages();
      line.stage = stages.first();
      for (int stage = 0; stage < StageSet::kMost; ++stage) {
        if (stages.contains(stage)) line.stages.push_back(stage);
      }
    }
    line.trains = parameter.requires_grad();
    line.global_bytes = c10::multiply_integers(line.global_shape) * element;
    if (!parameter.is_same(each.registered) && is_here(each.registered)) {
      line.unused_bytes =
          each.registered.numel() * static_cast<int64_t>(each.registered.element_size());
    }
    auto& first = first_name[parameter.unsafeGetTensorImpl()];
    if (first.empty()) {
      first = line.parameter;
    } else {
      line.tied_to = first;
    }
    entries.push_back(std::move(line));
  }
  return entries;
}

}  // namespace oslo
