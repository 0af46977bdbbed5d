#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "tests/support/temporary_directory.h"

namespace oslo::pretrained_test {

/// Python's transformers, in the environment that `./dev test` makes.
class Transformers {
 public:
  static bool is_there() { return std::filesystem::exists(environment() / "complete"); }

  /// The tiny models of transformers_models.py, made once for all tests of this program.
  static const std::filesystem::path& models() {
    static const test::TemporaryDirectory folder;
    static const bool made = [] {
      run("make '" + folder.path().string() + "'");
      return true;
    }();
    (void)made;
    return folder.path();
  }

  /// Runs transformers_models.py; throws with what it printed where it fails.
  static void run(const std::string& arguments) {
    const std::string command = "'" + (environment() / "bin/python").string() + "' '" +
                                OSLO_SOURCE_DIR "/tests/pretrained_test/transformers_models.py' " +
                                arguments + " 2>&1";
    FILE* output = popen(command.c_str(), "r");
    if (output == nullptr) throw std::runtime_error("cannot run " + command);
    std::string printed;
    std::array<char, 4096> buffer;
    while (const size_t count = fread(buffer.data(), 1, buffer.size(), output)) {
      printed.append(buffer.data(), count);
    }
    if (pclose(output) != 0) throw std::runtime_error(command + "\n" + printed);
  }

 private:
  static std::filesystem::path environment() {
    return std::filesystem::path(OSLO_SOURCE_DIR) / ".venv-transformers";
  }
};

}  // namespace oslo::pretrained_test

/// The first line of a test that compares with Python.
#define OSLO_NEEDS_TRANSFORMERS()                                                          \
  if (!::oslo::pretrained_test::Transformers::is_there()) {                                \
    GTEST_SKIP() << "no transformers in .venv-transformers: ./dev test installs it there"; \
  }
