#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/exported_model_test/python_run.h"
#include "tests/support/catalogue_entry.h"

namespace oslo::test {

/// A program as the catalogue has models, with the batches that Python trained it on. Its files are
/// read when one is asked for. `stays`: ends of the paths of modules that are in evaluation.
inline catalogue::Entry exported_entry(
    const std::string& name, const Loss& loss, const std::vector<std::string>& stays = {},
    const std::filesystem::path& (*folder)() = []() -> const auto& { return kExported; }) {
  catalogue::Entry entry;
  entry.name = name;
  entry.make = [=] {
    const auto model = load_exported(folder() / (name + ".pt2"));
    for (const auto& item : model->named_modules()) {
      for (const std::string& end : stays) {
        if (item.key().ends_with(end)) item.value()->eval();
      }
    }
    return model;
  };
  entry.batch = [=](int step) {
    const PythonRun run(name, "", folder());
    return catalogue::Batch{run.inputs(step % kSteps), run.target(step % kSteps)};
  };
  entry.forward = [](torch::nn::Module& model, const catalogue::Tensors& inputs) {
    return tensors_of(dynamic_cast<ExportedModule&>(model).forward(values_of(inputs)));
  };
  entry.loss = [loss](const catalogue::Tensors& outputs, const catalogue::Batch& batch) {
    return loss(outputs.front(), batch.target);
  };
  return entry;
}

}  // namespace oslo::test
