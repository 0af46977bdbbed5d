#pragma once

#include <CLI/App.hpp>

#include "tools/oslo/base/command.h"

namespace oslo::tool {

/// Adds `oslo inspect`.
void add_inspect_command(CLI::App& app, Invocation& invocation);

}  // namespace oslo::tool
