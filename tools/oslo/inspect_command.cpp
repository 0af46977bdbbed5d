#include "tools/oslo/inspect_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "tools/oslo/exported_program.h"

namespace oslo::tool {
namespace {

constexpr const char* kExamples = R"(Examples:
  oslo inspect model.pt2       what torch.export wrote: inputs, results, modules, operators

It reads no weights. docs/bring-your-model.md
)";

int inspect(const std::string& path) {
  if (is_exported(path)) return inspect_exported(path);
  std::cerr << "oslo inspect: " << path << " is no exported program; their names end in .pt2\n";
  return 2;
}

}  // namespace

void add_inspect_command(CLI::App& app, Invocation& invocation) {
  CLI::App* const command = app.add_subcommand("inspect", "Prints what is in a file.");
  const auto path = std::make_shared<std::string>();
  command->add_option("file", *path, "a program of torch.export.save")->required();
  command->footer(kExamples);
  command->callback([&invocation, path] { invocation.exit_code = inspect(*path); });
}

}  // namespace oslo::tool
