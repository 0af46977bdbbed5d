#include "tools/oslo/run/run_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "tools/oslo/base/find_program.h"
#include "tools/oslo/run/rank_group.h"
#include "tools/oslo/run/rank_options.h"

namespace oslo::tool {
namespace {

constexpr const char* kExamples = R"(Examples:
  oslo run -n 4 ./train --batch 8
  oslo run -n 2 -- ./train -n 100      (-n 100 belongs to ./train)
  oslo run -n 2 --no-prefix sh -c 'echo I am $RANK of $WORLD_SIZE'

Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
OSLO_LAUNCHER=1 in its environment, OMP_NUM_THREADS=1 unless you set it, and MALLOC_MMAP_THRESHOLD_,
MALLOC_TRIM_THRESHOLD_ and MALLOC_TOP_PAD_ unless you set one of them. The first rank that fails
ends the others, and its exit code is the command's.
)";

class RunFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: oslo run -n N [options] [--] program [arguments]\n";
  }
};

int run(const Invocation& invocation, RunOptions options) {
  if (invocation.program.empty()) {
    std::cerr << "oslo run: no program given; write `oslo run -n " << options.ranks
              << " ./program arguments`\n";
    return 2;
  }
  if (!find_gpus(options, "oslo run")) return 2;
  int exit_code = 0;
  options.path = find_program(invocation.program[0], "oslo run", exit_code);
  return exit_code == 0 ? run_ranks(options, invocation.program) : exit_code;
}

}  // namespace

void add_run_command(CLI::App& app, Invocation& invocation) {
  CLI::App* const command =
      app.add_subcommand("run", "Starts a program on several ranks of this machine.");
  const auto options = std::make_shared<RunOptions>();
  command->add_option("-n,--ranks", options->ranks, "how many ranks to start")
      ->required()
      ->check(CLI::Range(1, 65536).description(""));
  add_rank_options(*command, options);
  command->formatter(std::make_shared<RunFormatter>());
  command->get_formatter()->column_width(26);
  command->footer(kExamples);
  command->callback([&invocation, options] { invocation.exit_code = run(invocation, *options); });
}

}  // namespace oslo::tool
