#include "tools/oslo/schedule/schedule_show.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <optional>

#include "mpu/base/error.h"
#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/pipeline/schedule/order/text.h"
#include "parallelizers/pipeline/schedule/timeline/bubble_formula.h"
#include "parallelizers/pipeline/schedule/timeline/chrome_trace.h"
#include "parallelizers/pipeline/schedule/timeline/measured.h"
#include "parallelizers/pipeline/schedule/timeline/measured_step.h"
#include "parallelizers/pipeline/schedule/timeline/recorder.h"
#include "parallelizers/pipeline/schedule/timeline/report.h"
#include "parallelizers/pipeline/schedule/timeline/simulate.h"
#include "parallelizers/pipeline/schedule/timeline/svg.h"
#include "tools/oslo/schedule/schedule_costs.h"

namespace oslo::tool {
namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr int64_t kMostActions = 20'000'000;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw FileError("cannot read " + path);
  return content;
}

void write(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content << std::flush;
  if (!file) throw FileError("cannot write " + path);
}

bool all_equal(const std::vector<double>& costs) {
  return std::adjacent_find(costs.begin(), costs.end(), std::not_equal_to<>()) == costs.end();
}

void print_bubble(const ScheduleRequest& request, const pipeline::Timeline& timeline,
                  const pipeline::Costs& costs) {
  std::cout << "makespan  " << timeline.span() << "\nbubble    "
            << pipeline::percent(pipeline::bubble_of(timeline)) << "\n";
  if (!request.from.empty()) return;
  std::cout << "formula   ";
  const bool equal = all_equal(costs.forward) && all_equal(costs.input) && all_equal(costs.weight);
  if (!equal || costs.hop > 0 || !request.reads.empty()) {
    std::cout << "only where stages cost the same, hops nothing, and nothing is read\n";
  } else if (const std::optional<pipeline::BubbleFormula> formula = pipeline::bubble_formula(
                 request.sizes, costs.forward[0], costs.input[0], costs.weight[0])) {
    std::cout << pipeline::percent(formula->bubble) << " = " << formula->text << "; makespan "
              << formula->makespan << "\n";
  } else {
    std::cout << "none in closed form at these sizes and costs\n";
  }
}

pipeline::Schedule schedule_of(const ScheduleRequest& request) {
  if (!request.from.empty()) return pipeline::parse_schedule(read(request.from));
  const int64_t chunks = request.sizes.chunks > 0 ? request.sizes.chunks
                                                  : pipeline::default_chunks(request.sizes.kind);
  const int64_t actions = 3 * chunks * request.sizes.ranks * request.sizes.micro_batches;
  OSLO_CHECK(actions <= kMostActions, "up to ", actions, " actions are more than ", kMostActions);
  return pipeline::make_schedule(request.sizes);
}

// A chain of stages, and values that every rank's forward looks at.
pipeline::Graph graph_of(const ScheduleRequest& request, const pipeline::Schedule& schedule) {
  pipeline::Graph graph = pipeline::Graph::chain(schedule.stages());
  for (const int owner : request.reads) {
    OSLO_CHECK(owner < graph.stages, "--read ", owner, ": stages are 0 to ", graph.stages - 1);
    graph.read_by_all(owner, schedule);
  }
  return graph;
}

}  // namespace

void show_simulated(const ScheduleRequest& request) {
  const pipeline::Schedule schedule = schedule_of(request);
  if (request.lists) {
    std::cout << pipeline::to_text(schedule);
    return;
  }
  const int stages = schedule.stages();
  const pipeline::Costs costs = parse_costs(request.costs, stages);
  const pipeline::Timeline timeline =
      pipeline::simulate(schedule, graph_of(request, schedule), costs);
  const std::string grid = pipeline::grid(timeline, schedule.chunks == 1);
  std::cout << pipeline::title_of(schedule) << "\n\n"
            << (grid.empty() ? "(too wide to print: --svg draws it)\n" : grid) << "\n";
  print_bubble(request, timeline, costs);
  std::cout << "\n" << pipeline::rank_table(schedule, timeline);
  if (!request.svg.empty()) {
    write(request.svg, pipeline::to_svg({{pipeline::title_of(schedule), timeline}}));
  }
  if (!request.chrome.empty()) {
    write(request.chrome, pipeline::to_chrome_trace(timeline));
  }
}

void show_compared(const ScheduleRequest& request) {
  Rows rows = {{"kind", "stages a rank", "makespan", "bubble", "kept to I", "kept to W"}};
  std::string refusals;
  std::vector<pipeline::SvgPanel> panels;
  for (const std::string& kind : pipeline::schedule_kinds()) {
    ScheduleRequest one = request;
    one.sizes.kind = kind;
    try {
      const pipeline::Schedule schedule = schedule_of(one);
      pipeline::Costs costs = parse_costs(request.costs, schedule.stages());
      for (std::vector<double>* const passes : {&costs.forward, &costs.input, &costs.weight}) {
        for (double& cost : *passes) cost /= schedule.chunks;
      }
      const pipeline::Timeline timeline =
          pipeline::simulate(schedule, graph_of(request, schedule), costs);
      double input = 0;
      double weight = 0;
      for (const pipeline::Peak& peak : pipeline::peaks_of(schedule)) {
        input = std::max(input, static_cast<double>(peak.until_input) / schedule.chunks);
        weight = std::max(weight, static_cast<double>(peak.until_weight) / schedule.chunks);
      }
      rows.push_back({kind, std::to_string(schedule.chunks), pipeline::number_text(timeline.span()),
                      pipeline::percent(pipeline::bubble_of(timeline)),
                      pipeline::number_text(input), pipeline::number_text(weight)});
      // To its scale nobody could read the others.
      if (kind != "naive") panels.push_back({pipeline::title_of(schedule), timeline});
    } catch (const Error& error) {
      refusals += std::string("\n") + error.what() + "\n";
    }
  }
  std::cout << pipeline::aligned(rows) << refusals;
  if (!request.svg.empty()) write(request.svg, pipeline::to_svg(panels));
}

void show_measured(const ScheduleRequest& request) {
  std::vector<pipeline::Timeline> parts;
  for (const std::string& path : request.measured) {
    parts.push_back(pipeline::parse_chrome_trace(read(path)));
  }
  const pipeline::Timeline timeline = pipeline::joined(parts);
  std::optional<pipeline::Costs> costs;
  if (!request.costs.empty()) {
    costs = parse_costs(request.costs, pipeline::lists_of(timeline).stages());
  }
  const pipeline::MeasuredStep measured(timeline, costs);
  if (request.lists) {
    std::cout << pipeline::to_text(measured.schedule());
    return;
  }
  std::cout << measured.report();
  if (!request.svg.empty()) write(request.svg, measured.svg());
  if (!request.chrome.empty()) write(request.chrome, to_chrome_trace(measured.simulated()));
}

}  // namespace oslo::tool
