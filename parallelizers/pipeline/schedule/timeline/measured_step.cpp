#include "parallelizers/pipeline/schedule/timeline/measured_step.h"

#include <numeric>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "parallelizers/pipeline/schedule/order/graph.h"
#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/pipeline/schedule/timeline/bubble_formula.h"
#include "parallelizers/pipeline/schedule/timeline/chrome_trace.h"
#include "parallelizers/pipeline/schedule/timeline/measured.h"
#include "parallelizers/pipeline/schedule/timeline/report.h"
#include "parallelizers/pipeline/schedule/timeline/simulate.h"
#include "parallelizers/pipeline/schedule/timeline/svg.h"

namespace oslo::pipeline {
namespace {

/// The kind whose lists these are; "measured" if there is none.
std::string kind_of(const Schedule& schedule) {
  for (const std::string& kind : schedule_kinds()) {
    try {
      const Schedule known =
          make_schedule({kind, schedule.ranks, schedule.micro_batches, schedule.chunks});
      if (known.actions == schedule.actions) return kind;
    } catch (const Error&) {
      // A kind that cannot have these sizes.
    }
  }
  return "measured";
}

double mean(const std::vector<double>& of) {
  return of.empty() ? 0 : std::accumulate(of.begin(), of.end(), 0.0) / double(of.size());
}

}  // namespace

MeasuredStep::MeasuredStep(Timeline measured, const std::optional<Costs>& costs)
    : measured_(std::move(measured)),
      schedule_(lists_of(measured_)),
      costs_(costs ? *costs : costs_of(measured_, schedule_)),
      simulated_(simulate(schedule_, Graph::chain(schedule_.stages()), costs_)) {
  schedule_.kind = kind_of(schedule_);
}

std::string MeasuredStep::report() const {
  std::optional<BubbleFormula> formula;
  if (schedule_.kind != "measured") {
    formula =
        bubble_formula({schedule_.kind, schedule_.ranks, schedule_.micro_batches, schedule_.chunks},
                       mean(costs_.forward), mean(costs_.input), mean(costs_.weight));
  }
  return title_of(schedule_) + "\n\n" +
         measured_report(measured_, simulated_,
                         formula ? percent(formula->bubble) + " = " + formula->text : "");
}

std::string MeasuredStep::svg() const {
  return to_svg({{title_of(schedule_) + ", measured", measured_}, {"simulated", simulated_}});
}

std::string MeasuredStep::chrome_trace() const {
  return to_chrome_trace(measured_);
}

}  // namespace oslo::pipeline
