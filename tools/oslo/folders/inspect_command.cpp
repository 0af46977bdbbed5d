#include "tools/oslo/folders/inspect_command.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>

#include "checkpoint/storage/format.h"
#include "tools/oslo/folders/folder_commands.h"
#include "tools/oslo/plan/exported_program.h"

namespace oslo::tool {
namespace {

constexpr const char* kExamples = R"(Examples:
  oslo inspect model.pt2       what torch.export wrote: inputs, results, modules, operators
  oslo inspect parallel_ckpt   a checkpoint's files and tensors, and how they are cut
  oslo inspect model.safetensors

It reads no weights. docs/bring-your-model.md, docs/checkpoints.md
)";

int inspect(const std::string& path) {
  if (is_exported(path)) return inspect_exported(path);
  std::error_code unreadable;
  if (format_of_file(path) || !std::filesystem::is_regular_file(path, unreadable))
    return inspect_folder(path);
  std::cerr << "oslo inspect: " << path << " is neither an exported program (.pt2), nor a file of "
            << "tensors ("
            << each_format([](const FormatNames& names) { return names.extension; }, ", ")
            << "), nor a folder\n";
  return 2;
}

}  // namespace

void add_inspect_command(CLI::App& app, Invocation& invocation) {
  CLI::App* const command =
      app.add_subcommand("inspect", "Prints what is in a file or a checkpoint.");
  const auto path = std::make_shared<std::string>();
  command->add_option("file", *path, "a program of torch.export.save, or a checkpoint")->required();
  command->footer(kExamples);
  command->callback([&invocation, path] { invocation.exit_code = inspect(*path); });
}

}  // namespace oslo::tool
