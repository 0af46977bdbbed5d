#pragma once

#include <gtest/gtest.h>
#include <stdio.h>

#include <array>
#include <filesystem>
#include <stdexcept>
#include <string>

// Python's transformers, in the environment that `./dev test` makes.
namespace oslo::test {

inline std::filesystem::path transformers_environment() {
  return std::filesystem::path(OSLO_SOURCE_DIR) / ".venv-transformers";
}

inline bool transformers_are_there() {
  return std::filesystem::exists(transformers_environment() / "complete");
}

/// Runs a script, which is named from the repository's root; throws with what it printed where it
/// fails.
inline void run_with_transformers(const std::string& script, const std::string& arguments) {
  const std::string command = "'" + (transformers_environment() / "bin/python").string() + "' '" +
                              OSLO_SOURCE_DIR "/" + script + "' " + arguments + " 2>&1";
  FILE* const output = ::popen(command.c_str(), "r");
  if (output == nullptr) throw std::runtime_error("cannot run " + command);
  std::string printed;
  std::array<char, 4096> buffer;
  while (const size_t count = ::fread(buffer.data(), 1, buffer.size(), output)) {
    printed.append(buffer.data(), count);
  }
  if (::pclose(output) != 0) throw std::runtime_error(command + "\n" + printed);
}

}  // namespace oslo::test

/// The first line of a test that compares with Python.
#define OSLO_NEEDS_TRANSFORMERS()                                                          \
  if (!::oslo::test::transformers_are_there()) {                                           \
    GTEST_SKIP() << "no transformers in .venv-transformers: ./dev test installs it there"; \
  }
