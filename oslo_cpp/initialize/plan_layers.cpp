#include "oslo_cpp/initialize/plan_layers.h"

#include <iostream>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "oslo_cpp/initialize/memory/memory_limit.h"
#include "oslo_cpp/model/initialized_tag.h"
#include "parallelizers/deferred/fill.h"
#include "parallelizers/modules/layer_idx.h"
#include "parallelizers/placement/operators/planned_results.h"
#include "parallelizers/plan/dry/example_run.h"
#include "parallelizers/plan/layers/structural_plan.h"
#include "parallelizers/plan/search/automatic_plan.h"
#include "parallelizers/plan/search/sequence_plan.h"

namespace oslo {

namespace {

/// Of the parallel layers that were left whole for us; patterns of the config come behind them.
PlanPatterns patterns_of_layers(const ModelView& model) {
  PlanPatterns found;
  for (const ModuleView& each : model.modules()) {
    const auto* const layer = dynamic_cast<const LayerIdx*>(each.module.get());
    if (layer != nullptr && !layer->left_to_plan.empty()) {
      found.emplace_back(each.path, layer->left_to_plan);
    }
  }
  return found;
}

}  // namespace

std::vector<LayerPlan> plan_layers(const ModelView& model, const PlanPatterns& patterns,
                                   const std::vector<Policy>& policies, const PlanAxes& axes) {
  std::vector<LayerPlan> layers = plannable_layers(model, axes.searched);
  for (LayerPlan& layer : layers) layer.decided |= is_initialized(layer.weight());
  plan_by_structure(layers);
  plan_by_policies(layers, model, policies);
  PlanPatterns all = patterns_of_layers(model);
  all.insert(all.end(), patterns.begin(), patterns.end());
  plan_by_patterns(layers, all);
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
    const std::string threw = first_line(message_of(error));
    const std::string before_that =
        " (it was run without gradients, as it could not be run on shapes: " + reason + ")";
    fail_as(kind_of(error), "initialize: example_inputs threw: ", threw,
            reason == threw ? "" : before_that);
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

void plan_sequence(std::vector<LayerPlan>& layers, PlanForecast& forecast, const ModelView& model,
                   const PlanAxes& axes, const SearchLimits& limits, const Rates& rates) {
  constexpr const char* kInstead =
      ", or remove the key and say by \"plan\" which results lie cut: \"row scatter=-2\"";
  OSLO_CHECK_AS(config, !axes.searched.empty(),
                "'sequence_parallel' = true needs a tensor axis, and the axes are ", axes.names(),
                ": name one \"tensor\"", kInstead);
  OSLO_CHECK_AS(config, limits.example != nullptr,
                "'sequence_parallel' = true: which dimension is the sequence is seen in an example "
                "of the forward; set InitializeOptions::example_inputs",
                kInstead);
  DryCost after;
  try {
    after = cut_along_sequence(layers, model, axes, limits.example, rates).after;
  } catch (const std::exception& error) {
    if (kind_of(error) == ErrorKind::config) throw;
    fail_as(
        ErrorKind::config,
        "'sequence_parallel' = true: example_inputs could not be run on shapes (",
        first_line(message_of(error)),
        "), so that nobody knows which dimension is the sequence; an example without the loss and "
        "its backward pass may do",
        kInstead);
  }
  forecast.step = after.seconds;
  forecast.collectives = after.waiting;
  forecast.kept_bytes = after.kept_bytes;
}

void plan_sequence_for_memory(std::vector<LayerPlan>& layers, PlanForecast& forecast,
                              const ModelView& model, const PlanAxes& axes,
                              const SearchLimits& limits, const Rates& rates) {
  if (axes.searched.empty() || keeps_memory_limit(forecast)) return;
  std::vector<LayerPlan> cut = layers;
  PlanForecast of_cut = forecast;
  try {
    plan_sequence(cut, of_cut, model, axes, limits, rates);
  } catch (const ConfigError&) {
    return;  // nothing to cut along a sequence
  }
  if (!keeps_memory_limit(of_cut)) return;
  for (size_t i = 0; i < cut.size(); ++i) {
    if (!(cut[i].use == layers[i].use)) cut[i].why += ", as memory_limit is not kept otherwise";
  }
  layers = std::move(cut);
  forecast = std::move(of_cut);
}

std::string policies_text(const std::vector<Policy>& policies) {
  std::string text;
  for (const Policy& policy : policies) {
    text += "a policy for " + policy.class_name;
    for (const auto& [pattern, style] : policy.patterns) text += ", " + pattern + ": " + style;
    text += "\n";
  }
  return text;
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
