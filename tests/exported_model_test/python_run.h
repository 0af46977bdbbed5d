#pragma once

#include <oslo_cpp/oslo.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "oslo_cpp/exported/module/exported_module.h"
#include "tests/support/seeded.h"

namespace oslo::test {

constexpr int kSteps = 5;

/// Where export_models.py wrote when the files were made that the repository holds.
inline const std::filesystem::path kExported = OSLO_SOURCE_DIR "/tests/data/exported";

/// What export_models.py wrote of a model: the program, and how it went on in Python.
class PythonRun {
 public:
  explicit PythonRun(const std::string& program, const std::string& run = "",
                     const std::filesystem::path& folder = kExported)
      : program_(folder / (program + ".pt2")),
        told_(read_torch_bin(folder / ((run.empty() ? program : run) + ".bin"))) {}

  /// Ranks that are threads share the generator that layers draw from when they are made.
  std::shared_ptr<ExportedModule> load() const {
    return make_seeded(1, [&] {
      return evaluation_.empty() ? load_exported(program_) : load_exported(program_, evaluation_);
    });
  }

  /// The same with a program of its own for evaluation.
  PythonRun evaluated_by(const std::string& program) const {
    PythonRun run = *this;
    run.evaluation_ = program_.parent_path() / (program + ".pt2");
    return run;
  }

  std::vector<at::Tensor> inputs(int step) const { return numbered(prefix(step) + "input"); }
  at::Tensor target(int step) const { return told_.at(prefix(step) + "target"); }
  at::Tensor loss(int step) const { return told_.at(prefix(step) + "loss"); }
  std::vector<at::Tensor> evaluation() const { return numbered("evaluation"); }
  const StateDict& told() const { return told_; }

 private:
  static std::string prefix(int step) { return "step" + std::to_string(step) + "."; }

  std::vector<at::Tensor> numbered(const std::string& name) const {
    std::vector<at::Tensor> found;
    for (size_t i = 0; told_.contains(name + std::to_string(i)); ++i) {
      found.push_back(told_.at(name + std::to_string(i)));
    }
    return found;
  }

  std::filesystem::path program_, evaluation_;
  StateDict told_;
};

/// The tensors among a program's results.
inline std::vector<at::Tensor> tensors_of(const c10::IValue& output) {
  std::vector<at::Tensor> tensors;
  collect_tensors(output, tensors);
  return tensors;
}

inline std::vector<c10::IValue> values_of(const std::vector<at::Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}

using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

inline at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

inline at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return at::cross_entropy_loss(output.flatten(0, -2), target.flatten());
}

inline torch::optim::AdamW adam_of(const torch::nn::Module& model) {
  return torch::optim::AdamW(model.parameters(),
                             torch::optim::AdamWOptions(1e-3).weight_decay(0.01));
}

}  // namespace oslo::test
