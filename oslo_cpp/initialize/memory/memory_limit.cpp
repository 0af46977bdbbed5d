#include "oslo_cpp/initialize/memory/memory_limit.h"

#include <string>

#include "mpu/base/bytes.h"
#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/dry/rates.h"
#include "parallelizers/plan/layers/plan_axes.h"
#include "parallelizers/plan/layers/role.h"

namespace oslo {

void check_search_limits(const SearchLimits& options, int pipeline_ranks) {
  OSLO_CHECK(options.memory_limit >= 0, "InitializeOptions::memory_limit is ", options.memory_limit,
             "; give the bytes that a rank may use, or 0 for no limit");
  OSLO_CHECK(options.rates.empty() || options.example, "InitializeOptions::rates (", options.rates,
             ") counts seconds of a forward, which InitializeOptions::example_inputs shows: give "
             "that, too, or leave rates out");
  if (options.memory_limit == 0) return;
  OSLO_CHECK(options.example,
             "InitializeOptions::memory_limit needs InitializeOptions::example_inputs, a forward "
             "that shows what waits for backward: give it, or leave memory_limit out");
  OSLO_CHECK(pipeline_ranks == 1,
             "InitializeOptions::memory_limit is of a model on one pipeline "
             "stage, and this one is divided over ",
             pipeline_ranks,
             " ranks; leave it out, and take \"balance_stages\": \"memory\" in the config");
}

bool keeps_memory_limit(const PlanForecast& forecast) {
  const int64_t needed = forecast.parameter_bytes + forecast.kept_bytes;
  return forecast.memory_limit == 0 || needed <= forecast.memory_limit;
}

void check_memory_limit(const PlanForecast& forecast) {
  OSLO_CHECK(keeps_memory_limit(forecast), "initialize: a rank needs ",
             byte_text(forecast.parameter_bytes), " for parameters and gradients and up to ",
             byte_text(forecast.kept_bytes),
             " for what waits for backward; InitializeOptions::memory_limit is ",
             byte_text(forecast.memory_limit),
             "; use more tensor ranks or smaller batches, or raise it");
}

void check_limit_is_seen(int64_t memory_limit, const std::string& reason) {
  OSLO_CHECK(memory_limit == 0,
             "InitializeOptions::memory_limit cannot be compared with anything, as example_inputs "
             "could not be run on shapes (",
             reason, "); give an example that can, or leave memory_limit out");
}

void check_memory_of_one_rank(const ModelView& model, const std::vector<LayerPlan>& layers,
                              const SearchLimits& options) {
  if (options.memory_limit == 0) return;
  std::vector<LayerPlan> whole = layers;
  for (LayerPlan& layer : whole) {
    layer.style = {};
    layer.other_styles.clear();
  }
  const Rates rates = Rates::nominal();
  FirstWrites writes;
  DryCost cost;
  std::string reason;
  try {
    // Two ranks, of which each has the whole model: of one alone no operator would be seen.
    cost = DryRun(model, PlanAxes(2), options.example, writes, rates).run(whole);
  } catch (const std::exception& error) {
    reason = first_line(message_of(error));
  }
  writes.check();
  if (!reason.empty()) check_limit_is_seen(options.memory_limit, reason);
  PlanForecast forecast;
  forecast.parameter_bytes = cost.parameter_bytes;
  forecast.kept_bytes = cost.kept_bytes;
  forecast.memory_limit = options.memory_limit;
  check_memory_limit(forecast);
}

}  // namespace oslo
