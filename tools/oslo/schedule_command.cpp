#include "tools/oslo/schedule_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mpu/error.h"
#include "parallelizers/pipeline/schedule/bubble_formula.h"
#include "parallelizers/pipeline/schedule/chrome_trace.h"
#include "parallelizers/pipeline/schedule/kinds.h"
#include "parallelizers/pipeline/schedule/measured.h"
#include "parallelizers/pipeline/schedule/report.h"
#include "parallelizers/pipeline/schedule/simulate.h"
#include "parallelizers/pipeline/schedule/svg.h"
#include "parallelizers/pipeline/schedule/text.h"
#include "tools/oslo/schedule_costs.h"

namespace oslo::tool {
namespace {

constexpr const char* kExamples = R"(Examples:
  oslo schedule --kind interleaved -p 4 -m 8 -v 2
  oslo schedule --kind zbv -p 4 -m 8 --costs F=1,I=1.3,W=0.7,hop=0.25
  oslo schedule -p 4 -m 8 --costs F=1/1/1/2 --svg step.svg --chrome step.json
  oslo schedule --kind gpipe -p 2 -m 4 --lists > mine.txt; oslo schedule --from mine.txt
  oslo schedule --measured trace.json --svg step.svg

Kinds: naive, gpipe, 1f1b, interleaved, zero_bubble, zbv, dualpipev. An action is its stage, F for
forward, B for backward (I and W where it runs in two parts, for the input and the weights) and its
micro-batch. Kept are the activations of forwards whose I, or W, has not run. docs/pipeline.md
)";

constexpr int64_t kMostActions = 20'000'000;
constexpr double kMillisecond = 1000;  // of a trace; what a unit of cost is shown as

struct ScheduleCommandOptions {
  pipeline::ScheduleOptions sizes;
  std::string from, costs, svg, chrome;
  std::vector<std::string> measured;
  std::vector<int> reads;
  bool lists = false;
};

// A file that cannot be read or written is no misuse.
struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

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

std::string title_of(const pipeline::Schedule& schedule) {
  const auto count = [](int number, const std::string& one, const std::string& many) {
    return std::to_string(number) + " " + (number == 1 ? one : many);
  };
  return schedule.kind + ": " + count(schedule.ranks, "rank", "ranks") + ", " +
         count(schedule.micro_batches, "micro-batch", "micro-batches") + ", " +
         count(schedule.chunks, "stage", "stages") + " a rank";
}

bool all_equal(const std::vector<double>& costs) {
  return std::adjacent_find(costs.begin(), costs.end(), std::not_equal_to<>()) == costs.end();
}

void print_bubble(const ScheduleCommandOptions& options, const pipeline::Timeline& timeline,
                  const pipeline::Costs& costs) {
  std::cout << "makespan  " << timeline.span() << "\nbubble    "
            << pipeline::percent(pipeline::bubble_of(timeline)) << "\n";
  if (!options.from.empty()) return;
  std::cout << "formula   ";
  const bool equal = all_equal(costs.forward) && all_equal(costs.input) && all_equal(costs.weight);
  if (!equal || costs.hop > 0 || !options.reads.empty()) {
    std::cout << "only where stages cost the same, hops nothing, and nothing is read\n";
  } else if (const std::optional<pipeline::BubbleFormula> formula = pipeline::bubble_formula(
                 options.sizes, costs.forward[0], costs.input[0], costs.weight[0])) {
    std::cout << pipeline::percent(formula->bubble) << " = " << formula->text << "; makespan "
              << formula->makespan << "\n";
  } else {
    std::cout << "none in closed form at these sizes and costs\n";
  }
}

pipeline::Schedule schedule_of(const ScheduleCommandOptions& options) {
  if (!options.from.empty()) return pipeline::parse_schedule(read(options.from));
  const int64_t chunks = options.sizes.chunks > 0 ? options.sizes.chunks
                                                  : pipeline::default_chunks(options.sizes.kind);
  const int64_t actions = 3 * chunks * options.sizes.ranks * options.sizes.micro_batches;
  OSLO_CHECK(actions <= kMostActions, "up to ", actions, " actions are more than ", kMostActions);
  return pipeline::make_schedule(options.sizes);
}

// A chain of stages, and values that every rank's forward looks at.
pipeline::Graph graph_of(const ScheduleCommandOptions& options,
                         const pipeline::Schedule& schedule) {
  pipeline::Graph graph = pipeline::Graph::chain(schedule.stages());
  for (const int owner : options.reads) {
    OSLO_CHECK(owner < graph.stages, "--read ", owner, ": stages are 0 to ", graph.stages - 1);
    graph.read_by_all(owner, schedule);
  }
  return graph;
}

void show_simulated(const ScheduleCommandOptions& options) {
  const pipeline::Schedule schedule = schedule_of(options);
  if (options.lists) {
    std::cout << pipeline::to_text(schedule);
    return;
  }
  const int stages = schedule.stages();
  const pipeline::Costs costs = parse_costs(options.costs, stages);
  const pipeline::Timeline timeline =
      pipeline::simulate(schedule, graph_of(options, schedule), costs);
  const std::string grid = pipeline::grid(timeline, schedule.chunks == 1);
  std::cout << title_of(schedule) << "\n\n"
            << (grid.empty() ? "(too wide to print: --svg draws it)\n" : grid) << "\n";
  print_bubble(options, timeline, costs);
  std::cout << "\n" << pipeline::rank_table(schedule, timeline);
  if (!options.svg.empty()) {
    write(options.svg, pipeline::to_svg({{title_of(schedule), timeline}}));
  }
  if (!options.chrome.empty()) {
    write(options.chrome, pipeline::to_chrome_trace(timeline, kMillisecond));
  }
}

void show_measured(const ScheduleCommandOptions& options) {
  pipeline::Timeline measured;
  for (const std::string& path : options.measured) {
    const pipeline::Timeline part = pipeline::parse_chrome_trace(read(path));
    measured.ranks.resize(std::max(measured.ranks.size(), part.ranks.size()));
    for (size_t rank = 0; rank < part.ranks.size(); ++rank) {
      for (pipeline::Timeline::Event event : part.ranks[rank]) {
        event.begin /= kMillisecond;
        event.end /= kMillisecond;
        measured.ranks[rank].push_back(event);
      }
    }
  }
  const pipeline::Schedule schedule = pipeline::lists_of(measured);
  if (options.lists) {
    std::cout << pipeline::to_text(schedule);
    return;
  }
  const int stages = schedule.stages();
  const pipeline::Costs costs = options.costs.empty() ? pipeline::costs_of(measured, schedule)
                                                      : parse_costs(options.costs, stages);
  const pipeline::Timeline simulated =
      pipeline::simulate(schedule, graph_of(options, schedule), costs);
  std::cout << title_of(schedule) << "\n\n"
            << "step      " << measured.span() << " ms; simulated " << simulated.span() << " ms by "
            << (options.costs.empty() ? "what each stage took in the mean" : "--costs")
            << "\nbubble    " << pipeline::percent(pipeline::bubble_of(measured)) << "; simulated "
            << pipeline::percent(pipeline::bubble_of(simulated)) << "\n\n"
            << pipeline::measured_table(measured, simulated);
  if (!options.svg.empty()) {
    write(options.svg,
          pipeline::to_svg({{title_of(schedule), measured}, {"simulated", simulated}}));
  }
  if (!options.chrome.empty())
    write(options.chrome, pipeline::to_chrome_trace(simulated, kMillisecond));
}

int schedule(const ScheduleCommandOptions& options) {
  try {
    if (options.measured.empty()) {
      show_simulated(options);
    } else {
      show_measured(options);
    }
  } catch (const FileError& error) {
    std::cerr << "oslo schedule: " << error.what() << "\n";
    return 1;
  } catch (const Error& error) {
    std::cerr << "oslo schedule: " << error.what() << "\n";
    return options.from.empty() && options.measured.empty() ? 2 : 1;
  }
  return 0;
}

// The lists come from a kind and sizes, or from a file, or from a trace.
void check_together(const std::vector<CLI::Option*>& sizes, const CLI::Option* from,
                    const CLI::Option* measured) {
  if (from->empty() && measured->empty()) {
    for (const CLI::Option* const needed : {sizes[1], sizes[2]}) {
      if (needed->empty()) throw CLI::RequiredError("--from, --measured or " + needed->get_name());
    }
    return;
  }
  if (!from->empty() && !measured->empty()) throw CLI::ExcludesError("--from", "--measured");
  for (const CLI::Option* const size : sizes) {
    if (size->empty()) continue;
    throw CLI::ExcludesError(size->get_name(), from->empty() ? "--measured" : "--from");
  }
}

}  // namespace

void add_schedule_command(CLI::App& app, Invocation& invocation) {
  CLI::App* const command = app.add_subcommand(
      "schedule", "Shows how a pipeline schedule runs, or what a measured step was like.");
  const auto options = std::make_shared<ScheduleCommandOptions>();
  CLI::Option* const kind =
      command->add_option("-k,--kind", options->sizes.kind, "1f1b unless given");
  CLI::Option* const ranks =
      command->add_option("-p,--ranks", options->sizes.ranks, "how many ranks the pipeline has");
  CLI::Option* const micro_batches =
      command->add_option("-m,--micro-batches", options->sizes.micro_batches, "of one step");
  CLI::Option* const chunks = command->add_option("-v,--chunks", options->sizes.chunks,
                                                  "stages a rank; unless given, what the kind has");
  for (CLI::Option* const size : {ranks, micro_batches, chunks}) {
    size->check(CLI::Range(1, 65536).description(""));
  }
  CLI::Option* const from =
      command->add_option("--from", options->from, "show lists that a file holds");
  CLI::Option* const measured = command->add_option(
      "--measured", options->measured, "show a measured step: a Chrome trace, or one of each rank");
  command->add_option("--costs", options->costs,
                      "F=1,I=1,W=1,hop=0 unless given; F=1/1/2/1: by stage; ms with --measured");
  command
      ->add_option("--read", options->reads,
                   "forward looks at a value of this stage, as .item() does")
      ->check(CLI::NonNegativeNumber.description(""));
  command->add_flag("--lists", options->lists, "print the lists and nothing else");
  command->add_option("--svg", options->svg, "draw the step to a file");
  command->add_option("--chrome", options->chrome, "write it as a Chrome trace, 1 unit = 1 ms");
  command->get_formatter()->column_width(26);
  command->footer(kExamples);
  const auto sizes = {kind, ranks, micro_batches, chunks};
  command->callback(
      [&invocation, options, sizes = std::vector<CLI::Option*>(sizes), from, measured] {
        check_together(sizes, from, measured);
        invocation.exit_code = schedule(*options);
      });
}

}  // namespace oslo::tool
