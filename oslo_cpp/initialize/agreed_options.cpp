#include "oslo_cpp/initialize/agreed_options.h"

#include <sstream>

#include "mpu/base/error.h"
#include "parallelizers/placement/operators/user_rule_registry.h"

namespace oslo {

std::string options_text(const InitializeOptions& options, const ModelView& model) {
  std::ostringstream text;
  text << (options.example_inputs ? "example_inputs" : "no example_inputs") << "\n"
       << "random_mode " << static_cast<int>(options.random_mode) << "\n"
       << "seed " << options.seed << "\n"
       << "cut_own_parameters " << options.cut_own_parameters << "\n"
       << "memory_limit " << options.memory_limit << "\n"
       << "axes " << factors(options.axes) << "\n";
  for (const Policy& policy : options.policies) {
    text << "a policy for " << policy.class_name;
    for (const auto& [pattern, style] : policy.patterns) text << ", " << pattern << ": " << style;
    text << "\n";
  }
  text << user_rules_text() << options.stages.to_string(model);
  return text.str();
}

MpuOptions grid_options(const ParallelSizes& sizes, const Config& config,
                        const std::vector<Axis>& axes) {
  if (axes.empty() || !sizes.enabled) {
    return MpuOptions()
        .tensor_parallel_size(sizes.tensor)
        .pipeline_parallel_size(sizes.pipeline)
        .data_parallel_size(sizes.data)
        .rank_order(sizes.rank_order);
  }
  const ConfigValues& values = config.values();
  const bool sized = sizes.tensor > 1 || sizes.pipeline > 1 || values.data_parallel_size ||
                     sizes.rank_order != RankOrder::pp_dp_tp;
  OSLO_CHECK(!sized, "initialize: the grid is given twice, by InitializeOptions::axes (",
             factors(axes), ") and by the config's sizes or rank_order; use one of the two");
  return MpuOptions().axes(axes);
}

}  // namespace oslo
