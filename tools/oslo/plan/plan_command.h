#pragma once

#include <CLI/App.hpp>

#include "tools/oslo/base/command.h"

namespace oslo::tool {

/// Adds `oslo plan`, which runs a program as rank 0 of a pretended job until `initialize` has made
/// its plan, and prints that. No other rank starts and nothing is communicated.
void add_plan_command(CLI::App& app, Invocation& invocation);

}  // namespace oslo::tool
