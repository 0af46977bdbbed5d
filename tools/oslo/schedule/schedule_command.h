#pragma once

#include <CLI/App.hpp>

#include "tools/oslo/base/command.h"

namespace oslo::tool {

/// Adds `oslo schedule`, which shows how a pipeline schedule runs, without ranks and without a
/// model; or what a measured step was like.
void add_schedule_command(CLI::App& app, Invocation& invocation);

}  // namespace oslo::tool
