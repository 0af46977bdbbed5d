#pragma once

#include <CLI/App.hpp>

#include "tools/oslo/base/command.h"

namespace oslo::tool {

/// Adds `oslo run`, which starts a program on several local ranks (docs/launching.md). Its exit
/// code is the program's: 0, or that of the rank that failed first, 128 + n for signal n; 126 for a
/// program that cannot be executed, 127 for one that is not there.
void add_run_command(CLI::App& app, Invocation& invocation);

}  // namespace oslo::tool
