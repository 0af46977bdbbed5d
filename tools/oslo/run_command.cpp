#include "tools/oslo/run_command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>

#include "tools/oslo/rank_group.h"

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

bool is_file(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

// Where `program` lies, searched in PATH as a shell does; `exit_code` is 126 or 127 without one.
std::string find_program(const std::string& program, int& exit_code) {
  std::vector<std::string> candidates;
  if (program.find('/') != std::string::npos) {
    candidates.push_back(program);
  } else {
    const char* const path = std::getenv("PATH");
    std::istringstream folders(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
      candidates.push_back((folder.empty() ? "." : folder) + "/" + program);
    }
  }
  exit_code = 127;
  for (const std::string& candidate : candidates) {
    struct stat status {};
    if (stat(candidate.c_str(), &status) != 0) continue;
    if (is_file(candidate) && access(candidate.c_str(), X_OK) == 0) {
      exit_code = 0;
      return candidate;
    }
    exit_code = 126;
  }
  return "";
}

int run(const Invocation& invocation, RunOptions options) {
  if (invocation.program.empty()) {
    std::cerr << "oslo run: no program given; write `oslo run -n " << options.ranks
              << " ./program arguments`\n";
    return 2;
  }
  const std::string& program = invocation.program[0];
  int exit_code = 0;
  options.path = find_program(program, exit_code);
  if (exit_code == 0) return run_ranks(options, invocation.program);
  std::cerr << "oslo run: ";
  if (exit_code == 126) {
    std::cerr << program << " is not an executable file; `chmod +x` it, or name its interpreter\n";
  } else if (program.find('/') != std::string::npos) {
    std::cerr << "there is no file " << program << "\n";
  } else {
    std::cerr << "there is no program " << program << " in PATH"
              << (is_file(program) ? "; write ./" + program + " for the one in this folder" : "")
              << "\n";
  }
  return exit_code;
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
  command->formatter(std::make_shared<RunFormatter>());
  command->get_formatter()->column_width(26);
  command->footer(kExamples);
  command->callback([&invocation, options] { invocation.exit_code = run(invocation, *options); });
}

}  // namespace oslo::tool
