#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "tools/oslo/run/rank_group.h"

namespace oslo::tool {

/// What a command that starts ranks lets its user say of them, beside their number: --grace,
/// --no-prefix, --gpu-per-rank, --malloc-defaults.
void add_rank_options(CLI::App& command, const std::shared_ptr<RunOptions>& options);

/// Finds each rank's GPU where --gpu-per-rank asks for it. False where there are too few, which is
/// said in the name of `command` ("oslo run").
bool find_gpus(RunOptions& options, const char* command);

}  // namespace oslo::tool
