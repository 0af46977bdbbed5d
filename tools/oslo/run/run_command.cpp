#include "tools/oslo/run/run_command.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <stdexcept>

#include "tools/oslo/base/find_program.h"
#include "tools/oslo/run/rank_group.h"
#include "tools/oslo/run/visible_devices.h"

namespace oslo::tool {
namespace {

constexpr const char* kExamples = R"(Examples:
  oslo run -n 4 ./train --batch 8
  oslo run -n 2 -- ./train -n 100      (-n 100 belongs to ./train)
  oslo run -n 2 --no-prefix sh -c 'echo I am $RANK of $WORLD_SIZE'

Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
OSLO_LAUNCHER=1 in its environment, and OMP_NUM_THREADS=1 unless you set it. The first rank that
fails ends the others, and its exit code is the command's.
)";

class RunFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: oslo run -n N [options] [--] program [arguments]\n";
  }
};

int run(const Invocation& invocation, RunOptions options, bool own_gpu) {
  if (invocation.program.empty()) {
    std::cerr << "oslo run: no program given; write `oslo run -n " << options.ranks
              << " ./program arguments`\n";
    return 2;
  }
  if (own_gpu) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    try {
      options.gpus = one_gpu_each(
          options.ranks, visible == nullptr ? std::nullopt : std::optional<std::string>(visible));
    } catch (const std::invalid_argument& error) {
      std::cerr << "oslo run: --gpu-per-rank: " << error.what() << "\n";
      return 2;
    }
  }
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
  command
      ->add_option("--grace", options->grace_seconds,
                   "seconds from SIGTERM to SIGKILL when the ranks are ended (default 5)")
      ->check(CLI::Range(0, 86400).description(""));
  command->add_flag_callback(
      "--no-prefix", [options] { options->prefix = false; },
      "do not put `[rank r] ` before each line");
  const auto own_gpu = std::make_shared<bool>(false);
  command->add_flag("--gpu-per-rank", *own_gpu,
                    "let each rank see one GPU, by CUDA_VISIBLE_DEVICES, which stays as it is "
                    "without this");
  command->formatter(std::make_shared<RunFormatter>());
  command->get_formatter()->column_width(26);
  command->footer(kExamples);
  command->callback([&invocation, options, own_gpu] {
    invocation.exit_code = run(invocation, *options, *own_gpu);
  });
}

}  // namespace oslo::tool
