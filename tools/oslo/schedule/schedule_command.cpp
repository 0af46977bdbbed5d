#include "tools/oslo/schedule/schedule_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "mpu/base/error.h"
#include "tools/oslo/schedule/schedule_show.h"

namespace oslo::tool {
namespace {

constexpr const char* kExamples = R"(Examples:
  oslo schedule --kind interleaved -p 4 -m 8 -v 2
  oslo schedule --kind zbv -p 4 -m 8 --costs F=1,I=1.3,W=0.7,hop=0.25
  oslo schedule -p 4 -m 8 --costs F=1/1/1/2 --svg step.svg --chrome step.json
  oslo schedule --kind gpipe -p 2 -m 4 --lists > mine.txt; oslo schedule --from mine.txt
  oslo schedule --compare -p 4 -m 8 --svg kinds.svg
  oslo schedule --measured trace.json --svg step.svg

Kinds: naive, gpipe, 1f1b, interleaved, zero_bubble, zbv, dualpipev. An action is its stage, F for
forward, B for backward (I and W where it runs in two parts, for the input and the weights) and its
micro-batch. Kept are the activations of forwards whose I, or W, has not run. docs/pipeline.md
)";

int schedule(const ScheduleRequest& request) {
  try {
    if (request.compare) {
      show_compared(request);
    } else if (request.measured.empty()) {
      show_simulated(request);
    } else {
      show_measured(request);
    }
  } catch (const FileError& error) {
    std::cerr << "oslo schedule: " << error.what() << "\n";
    return 1;
  } catch (const Error& error) {
    std::cerr << "oslo schedule: " << error.what() << "\n";
    return request.from.empty() && request.measured.empty() ? 2 : 1;
  }
  return 0;
}

// The lists come from a kind and sizes, from all kinds, from a file, or from a trace.
void check_together(const CLI::App& command) {
  const auto given = [&](const char* name) { return !command.get_option(name)->empty(); };
  const char* source = "";
  for (const char* const name : {"--compare", "--from", "--measured"}) {
    if (!given(name)) continue;
    if (*source != '\0') throw CLI::ExcludesError(source, name);
    source = name;
  }
  const bool takes_sizes = *source == '\0' || given("--compare");
  for (const char* const name : {"--ranks", "--micro-batches"}) {
    if (takes_sizes && !given(name)) {
      throw CLI::RequiredError("--from, --measured or " + std::string(name));
    }
    if (!takes_sizes && given(name)) throw CLI::ExcludesError(name, source);
  }
  for (const char* const name : {"--kind", "--chunks"}) {
    if (*source != '\0' && given(name)) throw CLI::ExcludesError(name, source);
  }
  for (const char* const name : {"--lists", "--chrome"}) {
    if (given("--compare") && given(name)) throw CLI::ExcludesError(name, source);
  }
  if (given("--measured") && given("--read")) throw CLI::ExcludesError("--read", source);
}

}  // namespace

void add_schedule_command(CLI::App& app, Invocation& invocation) {
  CLI::App* const command = app.add_subcommand(
      "schedule", "Shows how a pipeline schedule runs, or what a measured step was like.");
  const auto request = std::make_shared<ScheduleRequest>();
  command->add_option("-k,--kind", request->sizes.kind, "1f1b unless given");
  const auto add_size = [&](const char* name, int& size, const char* what) {
    command->add_option(name, size, what)->check(CLI::Range(1, 65536).description(""));
  };
  add_size("-p,--ranks", request->sizes.ranks, "how many ranks the pipeline has");
  add_size("-m,--micro-batches", request->sizes.micro_batches, "of one step");
  add_size("-v,--chunks", request->sizes.chunks, "stages a rank; unless given, what the kind has");
  command->add_flag("--compare", request->compare, "a line for each kind, over the same model");
  command->add_option("--from", request->from, "show lists that a file holds");
  command->add_option("--measured", request->measured,
                      "show a measured step: a Chrome trace, or one of each rank");
  command->add_option("--costs", request->costs,
                      "F=1,I=1,W=1,hop=0 unless given; F=1/1/2/1: by stage; ms with --measured");
  command
      ->add_option("--read", request->reads,
                   "forward looks at a value of this stage, as .item() does")
      ->check(CLI::NonNegativeNumber.description(""));
  command->add_flag("--lists", request->lists, "print the lists and nothing else");
  command->add_option("--svg", request->svg, "draw the step to a file");
  command->add_option("--chrome", request->chrome, "write it as a Chrome trace, 1 unit = 1 ms");
  command->get_formatter()->column_width(26);
  command->footer(kExamples);
  command->callback([&invocation, request, command] {
    check_together(*command);
    invocation.exit_code = schedule(*request);
  });
}

}  // namespace oslo::tool
