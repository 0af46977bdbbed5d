#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <iostream>

// What the programs of one rank begin and end with.
namespace bench {

/// Reads the options that were added, whose defaults `--help` shows; ends the program where that is
/// what was asked for, and where they cannot be read.
inline void parse_or_exit(CLI::App& app, int argc, char** argv) {
  for (CLI::Option* option : app.get_options()) option->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
}

/// What `main` returns: 0, or 1 behind a line that says what `run` threw.
template <typename Run>
int outcome_of(const Run& run) {
  try {
    run();
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}

}  // namespace bench
