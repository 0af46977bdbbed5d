#pragma once

#include <string>
#include <vector>

namespace oslo::tool {

/// What the command line asked for besides a command's own options, and what came of it.
struct Invocation {
  /// The program to start and its arguments, untouched, for commands that start one.
  /// Filled before the command's callback runs.
  std::vector<std::string> program;

  /// The exit code of `oslo`; 2 means misuse.
  int exit_code = 0;
};

}  // namespace oslo::tool
