#include "tools/oslo/plan/plan_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>

#include "mpu/base/bytes.h"
#include "mpu/base/environment.h"
#include "tools/oslo/base/find_program.h"
#include "tools/oslo/plan/exported_program.h"
#include "tools/oslo/plan/model_library.h"

namespace oslo::tool {
namespace {

constexpr const char* kExamples = R"(Examples:
  oslo plan -n 4 ./train --tensor 4        how 4 ranks would share the model
  oslo plan -n 4096 --json ./train         for another program to read
  oslo plan -n 4 --measure ./train         by this machine's rates of now
  oslo plan -n 4 --explain ./train         how every activation lies, what moves for it, and why
  oslo plan -n 4 --explain --html explained.html ./train   the same as a page, too
  oslo plan -n 4 --memory 2GB ./train      whether a step fits a rank, and what has to be computed again
  oslo plan -n 8 ./libnet.so               the model of a library, cut over all 8
  oslo plan -n 8 model.pt2                 the model of a file of torch.export.save, in the same ways
  oslo plan -n 8 ./libnet.so config.json model_parallelism.tensor_parallel_size=4

A program runs as it is, alone, as rank 0 of N, until oslo::initialize has made its plan; that is
printed, and the program ends with 0, or with 3 where a step does not fit into --memory. One that
never calls initialize runs to its own end. A library
offers its model by OSLO_MODEL_LIBRARY (oslo_cpp/initialize/model_library.h).
)";

struct PlanOptions {
  int ranks = 0;
  bool json = false;
  bool measure = false;
  bool explain = false;
  std::string page;
  std::string memory;
};

class PlanFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: oslo plan -n N [--json] [--measure] [--memory BYTES] [--explain] [--] program "
           "[arguments]\n"
           "       oslo plan -n N [--json] [--measure] [--memory BYTES] [--explain] [--] "
           "library.so "
           "[config.json] [path=value "
           "...]\n"
           "       oslo plan -n N [--json] [--measure] [--memory BYTES] [--explain] [--] model.pt2 "
           "[config.json] [path=value "
           "...]\n";
  }
};

void set(Variable variable, const std::string& value) {
  setenv(row_of(variable).name, value.c_str(), /*overwrite=*/1);
}

/// Empty where it is none.
std::string wrong_bytes(const std::string& text) {
  if (parse_bytes(text)) return "";
  return "'" + text + "' is no number of bytes; give one such as 2GB or 1.5GiB";
}

int plan(const Invocation& invocation, const PlanOptions& options) {
  if (invocation.program.empty()) {
    std::cerr << "oslo plan: no program given; write `oslo plan -n " << options.ranks
              << " ./program arguments`\n";
    return 2;
  }
  // As `oslo run` has it, so that steps are expected at the same rates.
  if (options.ranks > 1) setenv("OMP_NUM_THREADS", "1", /*overwrite=*/0);
  // Both: ranks alone may be left over in a shell.
  set(Variable::launcher, "plan");
  set(Variable::plan_ranks, std::to_string(options.ranks));
  set(Variable::plan_format, options.json ? "json" : "table");
  if (!options.memory.empty()) set(Variable::plan_memory, options.memory);
  if (options.measure) set(Variable::measure, "1");
  if (options.explain) set(Variable::plan_explain, "1");
  if (!options.page.empty()) set(Variable::plan_page, options.page);
  if (is_library(invocation.program[0])) return plan_library(invocation.program);
  if (is_exported(invocation.program[0])) return plan_exported(invocation.program);
  int exit_code = 0;
  const std::string path = find_program(invocation.program[0], "oslo plan", exit_code);
  if (exit_code != 0) return exit_code;
  std::vector<char*> arguments;
  for (const std::string& word : invocation.program) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  execv(path.c_str(), arguments.data());
  std::cerr << "oslo plan: cannot start " << path << ": " << std::strerror(errno) << "\n";
  return 126;
}

}  // namespace

void add_plan_command(CLI::App& app, Invocation& invocation) {
  CLI::App* const command =
      app.add_subcommand("plan", "Prints how a program's model would be cut, without its ranks.");
  const auto options = std::make_shared<PlanOptions>();
  command->add_option("-n,--ranks", options->ranks, "how many ranks to pretend")
      ->required()
      ->check(CLI::Range(1, 65536).description(""));
  command->add_flag("--json", options->json, "print JSON instead of tables");
  command->add_flag("--measure", options->measure,
                    "measure this machine anew, by whose rates steps are expected");
  command
      ->add_option("--memory", options->memory,
                   "what a step would take of it, and whether it fits: 2GB, 1.5GiB")
      ->type_name("BYTES")
      ->check(CLI::Validator(wrong_bytes, "").description(""));
  CLI::Option* const explain = command->add_flag(
      "--explain", options->explain,
      "how every activation of the example and its gradient lie, what moves, why, how many bytes");
  command->add_option("--html", options->page, "with --explain: write it as a page, too")
      ->needs(explain)
      ->type_name("FILE");
  command->formatter(std::make_shared<PlanFormatter>());
  command->get_formatter()->column_width(26);
  command->footer(kExamples);
  command->callback([&invocation, options] { invocation.exit_code = plan(invocation, *options); });
}

}  // namespace oslo::tool
