#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/catalogue_amp.h"
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

/// One step by the config's "amp", beside one device under a guard, micro-batch by micro-batch.
inline void amp_on_stages(const Entry& entry, PipelineCase how) {
  if (!entry.runs_in_bf16) return;
  how.grid.data = 1;
  const torch::Dtype type = amp_type(entry);
  oslo::run_as_threads(how.grid.size(), [&](const oslo::World& world) {
    at::set_num_threads(1);
    const auto exact = make_model(entry, torch::kFloat32),
               plain = make_model(entry, torch::kFloat32),
               model = make_model(entry, torch::kFloat32);
    const Batch batch = make_batch(entry, 0, torch::kFloat32);
    Tensors whole = batch.inputs;
    whole.push_back(batch.target);
    const auto loss = [&](torch::nn::Module& of, const Tensors& micro) {
      const Batch own{Tensors(micro.begin(), micro.end() - 1), micro.back()};
      return entry.loss(entry.forward(of, own.inputs), own);
    };
    oslo::InitializeOptions options;
    options.world = world;
    options.cut_own_parameters = true;
    options.example_inputs = [&] { loss(*model, whole); };
    const char* const dtype = type == torch::kHalf ? "float16" : "bfloat16";
    const std::string amp = c10::str(R"({"amp": {"enabled": true, "dtype": ")", dtype, "\"}, ");
    const std::string text = amp + spread(*model, how.grid).substr(1);
    const auto parallel = oslo::initialize(model, oslo::Config::parse(text), options);
    oslo::PipelineSchedule schedule(parallel,
                                    oslo::PipelineOptions().num_microbatches(2).kind(how.kind));
    for (const Tensors& part : pipeline_parity::divided(whole, 2)) {
      (loss(*exact, part) / 2).backward();
      torch::Tensor own;
      {
        const oslo::test::UnderAutocast guard(type);
        own = loss(*plain, part);
      }
      (own / 2).backward();
    }
    schedule.forward_backward_step(whole,
                                   [&](const Tensors& micro) { return loss(*model, micro); });
    const auto of_exact = exact->named_parameters(), of_plain = plain->named_parameters();
    // Of all gradients together: rounding may decide which of them some small ones are.
    Tensors own, one, fp32;
    for (const auto& item : model->named_parameters()) {
      if (!oslo::is_here(item.value())) continue;
      const torch::Tensor& gradient = item.value().grad();
      ASSERT_EQ(gradient.defined(), of_plain[item.key()].grad().defined()) << item.key();
      if (!gradient.defined()) continue;
      EXPECT_EQ(gradient.scalar_type(), torch::kFloat32) << item.key();
      const auto flat = [](const torch::Tensor& of) {
        return (of.is_sparse() ? of.to_dense() : of).flatten();
      };
      own.push_back(
          flat(gradient.is_sparse() ? gradient.to_dense() : pipeline_parity::whole_here(gradient)));
      one.push_back(flat(of_plain[item.key()].grad()));
      fp32.push_back(flat(of_exact[item.key()].grad()));
    }
    if (own.empty()) return;
    oslo::test::expect_rounded_alike(torch::cat(own), torch::cat(one), torch::cat(fp32),
                                     how.grid.size(), "gradients", entry.decides ? 0.25 : 0);
  });
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

TEST_P(OnStages, ComputesInTheTypeAskedFor) {
  amp_on_stages(std::get<0>(GetParam())(), std::get<1>(GetParam()));
}

inline std::string stages_case_name(const testing::TestParamInfo<PipelineParameter>& info) {
  return std::get<0>(info.param)().name + "_" + std::get<1>(info.param).name();
}

}  // namespace catalogue
