#pragma once

#include <filesystem>
#include <string>

#include "tests/support/temporary_directory.h"
#include "tests/support/transformers.h"

namespace oslo::pretrained_test {

/// transformers_models.py, run by Python's transformers.
class Transformers {
 public:
  /// The tiny models that it makes, made once for all tests of this program.
  static const std::filesystem::path& models() {
    static const test::TemporaryDirectory folder;
    static const bool made = [] {
      run("make '" + folder.path().string() + "'");
      return true;
    }();
    (void)made;
    return folder.path();
  }

  /// Throws with what it printed where it fails.
  static void run(const std::string& arguments) {
    test::run_with_transformers("tests/pretrained_test/transformers_models.py", arguments);
  }
};

}  // namespace oslo::pretrained_test
