#pragma once

#include <filesystem>
#include <string>

#include "tests/exported_model_test/python_training.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/transformers.h"

// Models of Python's transformers, exported when the program runs.
namespace oslo::test {

/// What export_transformers.py writes, made once for all tests of this program.
inline const std::filesystem::path& exported() {
  static const TemporaryDirectory folder;
  static const bool made = [] {
    run_with_transformers("tests/exported_transformers_test/export_transformers.py",
                          "'" + folder.path().string() + "'");
    return true;
  }();
  (void)made;
  return folder.path();
}

inline PythonRun run_of(const std::string& program, const std::string& run = "") {
  return PythonRun(program, run, exported());
}

/// The program of training, with its dropout off.
inline Training without_dropout() {
  return {.prepare = [](ExportedModule& model) { model.eval(); }};
}

/// Norms, rotations and losses of transformers are computed in float, whatever the model's type: an
/// order of sums that differs in double can show as a rounding in float. Where a gradient is nearly
/// zero, AdamW shows that up to a fraction of a step (1e-3).
inline Training with_parts_in_float() {
  Training training = without_dropout();
  training.of_loss = 1e-6;
  training.of_state = {1e-6, 1e-6};
  return training;
}

/// The loss is the first of the model's results.
inline Training with_its_own_loss() {
  Training training = with_parts_in_float();
  training.loss = [](const at::Tensor& output, const at::Tensor& /*target*/) { return output; };
  return training;
}

}  // namespace oslo::test
