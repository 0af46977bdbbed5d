#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/catalogue_entry.h"
#include "tests/support/pipeline_parity.h"
#include "tests/support/spread.h"

// The catalogue's models on pipeline stages, against one device.
namespace catalogue {

struct PipelineCase {
  pipeline_parity::Grid grid;
  const char* kind;
  std::string name() const { return grid.name() + "_" + kind; }
};

inline std::vector<PipelineCase> pipeline_cases() {
  std::vector<PipelineCase> cases;
  for (const pipeline_parity::Grid grid :
       std::vector<pipeline_parity::Grid>{{1, 1, 2}, {1, 1, 4}, {1, 2, 2}, {2, 2, 2}}) {
    for (const char* kind : {"1f1b", "gpipe"}) cases.push_back({grid, kind});
  }
  return cases;
}

/// A model as its holder would be.
class AnyModel {
 public:
  explicit AnyModel(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}
  torch::nn::Module* operator->() const { return module_.get(); }
  torch::nn::Module& operator*() const { return *module_; }
  operator std::shared_ptr<torch::nn::Module>() const { return module_; }
  const std::shared_ptr<torch::nn::Module>& ptr() const { return module_; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

inline void expect_on_stages(const Entry& entry, const PipelineCase& how) {
  pipeline_parity::Trial trial{how.grid, how.kind, /*micro_batches=*/2};
  trial.steps = 2;
  // Rows that see each other have to be several.
  if (entry.batch_coupled && how.grid.data > 1) trial.micro_batches = 1;
  trial.sgd = entry.sgd;
  trial.batch_coupled = entry.batch_coupled || entry.counts_words;
  trial.evaluates = true;
  trial.tweak = [](oslo::InitializeOptions& options) { options.cut_own_parameters = true; };
  const auto make = [&] { return AnyModel(entry.make()); };
  trial.config = spread(*oslo::test::make_seeded(7, entry.make), how.grid);
  const auto batch = [&](int step) {
    const Batch made = entry.batch(step);
    Tensors tensors = made.inputs;
    tensors.push_back(made.target);
    for (torch::Tensor& tensor : tensors) tensor = floating_to(tensor, torch::kDouble);
    return tensors;
  };
  const auto loss = [&](const AnyModel& model, const Tensors& micro) {
    const Batch own{Tensors(micro.begin(), micro.end() - 1), micro.back()};
    return entry.loss(entry.forward(*model, own.inputs), own);
  };
  pipeline_parity::expect_parity(trial, make, batch, loss);
}

using PipelineParameter = std::tuple<Entry (*)(), PipelineCase>;

/// A case for each model, all of them under OSLO_TEST_PAIRS.
inline std::vector<PipelineParameter> on_stages(const std::vector<Entry (*)()>& entries) {
  const auto cases = pipeline_cases();
  std::vector<PipelineParameter> chosen;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (std::getenv("OSLO_TEST_PAIRS") == nullptr) {
      chosen.emplace_back(entries[i], cases[i % cases.size()]);
      continue;
    }
    for (const PipelineCase& each : cases) chosen.emplace_back(entries[i], each);
  }
  return chosen;
}

/// Data 2 x tensor 2 x pipeline 2.
inline std::vector<PipelineParameter> in_three_dimensions(const std::vector<Entry (*)()>& entries) {
  std::vector<PipelineParameter> chosen;
  for (Entry (*entry)() : entries) chosen.emplace_back(entry, PipelineCase{{2, 2, 2}, "1f1b"});
  return chosen;
}

/// INSTANTIATE_TEST_SUITE_P(Family, OnStages, ValuesIn(on_stages({entries...})), stages_case_name);
class OnStages : public testing::TestWithParam<PipelineParameter> {};

TEST_P(OnStages, TrainsAsOnOneDevice) {
  expect_on_stages(std::get<0>(GetParam())(), std::get<1>(GetParam()));
}

inline std::string stages_case_name(const testing::TestParamInfo<PipelineParameter>& info) {
  return std::get<0>(info.param)().name + "_" + std::get<1>(info.param).name();
}

}  // namespace catalogue
