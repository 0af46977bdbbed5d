#pragma once

#include <CLI/App.hpp>

#include "tools/oslo/base/command.h"

namespace oslo::tool {

/// Adds `oslo train`, which trains the model of a config (docs/train.md) on several ranks of this
/// machine, or as a rank of another launcher. Exit codes: as `oslo run`; 2 for a config that is not
/// understood, or does not fit the ranks, before any of them starts.
void add_train_command(CLI::App& app, Invocation& invocation);

}  // namespace oslo::tool
