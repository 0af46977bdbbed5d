#include "oslo_cpp/initialize/plan_layers.h"

#include <iostream>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "oslo_cpp/model/initialized_tag.h"
#include "parallelizers/deferred/fill.h"
#include "parallelizers/placement/operators/planned_results.h"
#include "parallelizers/plan/dry/example_run.h"
#include "parallelizers/plan/layers/structural_plan.h"
#include "parallelizers/plan/search/automatic_plan.h"

namespace oslo {

std::vector<LayerPlan> plan_layers(const ModelView& model, const PlanPatterns& patterns,
                                   const std::vector<Policy>& policies, const PlanAxes& axes) {
  std::vector<LayerPlan> layers = plannable_layers(model, axes.searched);
  for (LayerPlan& layer : layers) layer.decided |= is_initialized(layer.weight());
  plan_by_structure(layers);
  plan_by_policies(layers, model, policies);
  plan_by_patterns(layers, patterns);
  check_asked(layers, axes);
  follow_ties(layers);
  return layers;
}

PlanForecast plan_by_example(std::vector<LayerPlan>& layers, const ModelView& model,
                             const PlanAxes& axes, const SearchLimits& limits,
                             bool cut_own_parameters, const Rates& rates, bool tells) {
  const auto& example = limits.example;
  const std::vector<LayerPlan> before = layers;
  std::string reason;
  FirstWrites writes;
  try {
    const PlanSearch search = plan_automatically(layers, model, axes, example, writes,
                                                 cut_own_parameters, rates, limits.memory_limit);
    forget_computed(layers, search.computed);
    for (LayerPlan& layer : layers) {
      if (layer.asked_for || search.value_readers.empty()) continue;
      layer.why +=
          "; the forward read values, zeros in the search, by " + search.value_readers.front();
    }
    const DryCost& cost = search.found;
    return {cost.seconds,    cost.waiting,        search.one_device, cost.parameter_bytes,
            cost.kept_bytes, limits.memory_limit, rates.machine,     {}};
  } catch (const PlanMismatch& error) {
    fail_as(ErrorKind::config, "initialize: example_inputs: ", error.what());
  } catch (const std::exception& error) {
    reason = first_line(message_of(error));
    layers = before;
    for (LayerPlan& layer : layers) {
      if (layer.asked_for) continue;
      layer.why += "; by structure, as the example could not be run on shapes: " + reason;
    }
  }
  writes.check();
  OSLO_CHECK(!is_deferred(model), "initialize: example_inputs could not be run on shapes (", reason,
             "), and a model that was constructed under DeferredInit has no content to run it on; "
             "construct it without, or leave example_inputs out");
  check_limit_is_seen(limits.memory_limit, reason);
  std::vector<MemberKeeper::Computed> computed;
  try {
    computed = try_example(model, example, writes);
  } catch (const std::exception& error) {
    writes.check();
    fail_as(kind_of(error), "initialize: example_inputs threw: ", first_line(message_of(error)));
  }
  set_computed(layers, computed);
  forget_computed(layers, computed);
  if (tells) {
    std::cerr << "oslo: planned by names and shapes alone, as example_inputs could not be run on "
                 "shapes: " +
                     reason + "\n";
  }
  return {};
}

std::string plan_text(const std::vector<LayerPlan>& layers, const StagePlan& stages,
                      const ModelView& model) {
  std::string text = stages.tensors.empty() ? "" : stages.to_string(model);
  for (const LayerPlan& layer : layers) {
    text += c10::str(layer.path, ": ", layer.style.name(), " ",
                     layer.weight_placement().to_string(), use_text(layer.use));
    for (const auto& [axis, style] : layer.other_styles) {
      text +=
          c10::str("; ", axis, " ", layer.weight_placement(style).to_string(), use_text(style.use));
    }
    text += "\n";
  }
  return text;
}

}  // namespace oslo
