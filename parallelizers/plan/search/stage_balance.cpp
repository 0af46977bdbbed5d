#include "parallelizers/plan/search/stage_balance.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <unordered_map>

#include "mpu/base/error.h"
#include "parallelizers/plan/search/stage_search.h"
#include "parallelizers/stages/balance.h"
#include "parallelizers/stages/rank_balance.h"

namespace oslo {
namespace {

/// What training with AdamW keeps of a parameter: itself, its gradient and two moments.
constexpr int64_t kCopies = 4;

/// The layers as units that are cut between, each a stage of its own.
struct Units {
  int number = 0;
  std::vector<int> of_layer;
  StagePlan plan;

  Units(const ModelView& model, const StageWishes& wishes) {
    const auto layers =
        static_cast<int>(plan_stages(model, {wishes.stages, wishes.layers, {}, {}}).layers.size());
    number = std::min(layers, StageSet::kMost);
    for (int i = 0; i < layers; ++i) of_layer.push_back(i * number / layers);
    plan = plan_stages(model, {number, wishes.layers, of_layer, {}});
  }

  std::vector<int> stages(int stages, const std::vector<int>& rank_of_stage,
                          const std::vector<UnitCost>& costs) const {
    const std::vector<int> of_unit = rank_of_stage.empty()
                                         ? balanced_stages(number, stages, costs)
                                         : balanced_ranks(number, rank_of_stage, costs);
    std::vector<int> ids;
    for (const int unit : of_layer) ids.push_back(of_unit[unit]);
    return ids;
  }
};

/// By how many ranks a cut parameter is divided.
std::unordered_map<const c10::TensorImpl*, int64_t> parts_of(const BalancedModel& of) {
  std::unordered_map<const c10::TensorImpl*, int64_t> parts;
  for (const LayerPlan& layer : of.layers) {
    for (const LayerPlan::Part& part : layer.parts()) {
      int64_t& number = parts.emplace(part.tensor.unsafeGetTensorImpl(), 1).first->second;
      for (const Axis& axis : of.axes.axes) {
        const LayerStyle& style = layer.style_on(axis.name);
        const Placement placement =
            part.bias ? layer.bias_placement(style) : layer.weight_placement(style);
        if (placement.is_shard()) number *= axis.size;
      }
    }
  }
  return parts;
}

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

std::vector<UnitCost> memory_of(const BalancedModel& of, const StageMap& units) {
  std::vector<UnitCost> costs;
  const auto parts = parts_of(of);
  for (const NamedTensor& each : of.model.in_use()) {
    const auto found = parts.find(each.tensor.unsafeGetTensorImpl());
    const int64_t copies = each.tensor.requires_grad() ? kCopies : 1;
    const int64_t divided = found == parts.end() ? 1 : found->second;
    costs.push_back(
        {units.of(each.tensor), static_cast<double>(bytes_of(each.tensor) * copies / divided)});
  }
  for (const BufferView& buffer : of.model.buffers()) {
    costs.push_back({units.of(buffer.tensor), static_cast<double>(bytes_of(buffer.tensor))});
  }
  return costs;
}

}  // namespace

std::vector<int> stages_by_time(const BalancedModel& of, const StageWishes& wishes,
                                const Rates& rates) {
  Units units(of.model, wishes);
  const StageUses uses =
      add_used_stages(units.plan.tensors, of.layers, of.model, of.axes, of.example, rates);
  OSLO_CHECK(uses.reason.empty(),
             "'balance_stages' is time, and the example could not be run on shapes, by which the "
             "layers are compared: ",
             uses.reason, "; take \"memory\", or give the stages by ids or patterns");
  return units.stages(wishes.stages, of.rank_of_stage, uses.work);
}

std::vector<int> stages_by_memory(const BalancedModel& of, const StageWishes& wishes) {
  Units units(of.model, wishes);
  if (of.example) {  // where it cannot be run, what several stages use is found by the first step
    add_used_stages(units.plan.tensors, of.layers, of.model, of.axes, of.example);
  }
  return units.stages(wishes.stages, of.rank_of_stage, memory_of(of, units.plan.tensors));
}

}  // namespace oslo
