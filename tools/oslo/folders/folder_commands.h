#pragma once

#include <CLI/App.hpp>
#include <string>

#include "tools/oslo/base/command.h"

namespace oslo::tool {

/// Add `oslo merge`, `reshard`, `convert` and `verify`, which work on checkpoints' folders.
void add_merge_command(CLI::App& app, Invocation& invocation);
void add_reshard_command(CLI::App& app, Invocation& invocation);
void add_convert_command(CLI::App& app, Invocation& invocation);
void add_verify_command(CLI::App& app, Invocation& invocation);

/// `oslo inspect` of a folder, or of one file of tensors: its exit code.
int inspect_folder(const std::string& path);

}  // namespace oslo::tool
