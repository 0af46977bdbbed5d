// The merged checkpoint of a model on tensor ranks and pipeline stages, as Python opens it.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/models/gpt2.h"
#include "tests/support/pipeline_parity.h"
#include "tests/support/python_state.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

using pipeline_parity::config_of;
using pipeline_parity::Grid;
using pipeline_parity::Tensors;

constexpr int64_t kTokensOfPython = 53;  // which nothing divides

/// With buffers beside it: integers on the first stage, a mask on the last.
struct MaskedTextImpl : torch::nn::Module {
  MaskedTextImpl() {
    models::GPT2Options options;
    options.vocabulary = kTokensOfPython;
    options.hidden = 12;
    options.heads = 3;
    options.layers = 4;
    shift = register_buffer("shift", torch::arange(5));
    text = register_module("text", models::GPT2(options));
    never = register_buffer("never", torch::arange(kTokensOfPython) == 7);
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    const torch::Tensor shifted = (tokens + shift).remainder(kTokensOfPython);
    return text->forward(shifted).masked_fill(never, -20);
  }
  torch::Tensor shift, never;
  models::GPT2 text{nullptr};
};
TORCH_MODULE(MaskedText);

class MergedInPython : public testing::TestWithParam<std::tuple<Grid, const char*>> {};

TEST_P(MergedInPython, HasTheTensorsOfTheModel) {
  const auto& [grid, kind] = GetParam();
  const TemporaryDirectory folder;
  nlohmann::json expected;
  run_as_threads(grid.size(), [&, grid = grid, kind = kind](World world) {
    at::set_num_threads(1);
    MaskedText model = make_seeded(7, [] { return MaskedText(); });
    const Tensors batch = make_seeded(8, [] {
      return Tensors{torch::randint(kTokensOfPython, {8, 5}),
                     torch::randint(kTokensOfPython, {8, 5})};
    });
    const auto loss = [&](const Tensors& micro) {
      const auto logits = model->forward(micro[0]).flatten(0, 1);
      return torch::nn::functional::cross_entropy(logits, micro[1].flatten());
    };
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { loss(batch); };
    const ParallelModel parallel = initialize(model, Config::parse(config_of(grid, kind)), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    schedule.forward_backward_step(batch, loss);
    optimizer.step();
    parallel.save_parallelized(folder / "parts");
    parallel.save_parallelized(folder / "merged", SaveOptions().merge_checkpoints(true));
    nlohmann::json trained;
    for (const auto& item : model->named_parameters()) {
      trained[item.key()] = python_entry(full_tensor(item.value()));
    }
    for (const auto& item : model->named_buffers()) {
      trained[item.key()] = python_entry(full_tensor(item.value()));
    }
    if (world.rank() == 0) expected = trained;
  });
  for (const char* part : {"tp_0_pp_0", "tp_0_pp_1", "tp_1_pp_0", "tp_1_pp_1"}) {
    EXPECT_TRUE(
        std::filesystem::exists(folder / c10::str("parts/pytorch_model_", part, ".safetensors")));
  }
  ASSERT_EQ(expected.at("shift")[0], "int64");
  ASSERT_EQ(expected.at("never")[0], "bool");
  for (const char* file : {"merged/pytorch_model.bin", "merged/model.safetensors"}) {
    const nlohmann::json read = python_state(folder / file);
    EXPECT_EQ(read.at("state"), expected) << file << " by " << read.at("reader");
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, MergedInPython,
                         testing::Values(std::tuple{Grid{1, 2, 2}, "1f1b"},
                                         std::tuple{Grid{1, 2, 2}, "zbv"},
                                         std::tuple{Grid{2, 2, 2}, "1f1b"}),
                         [](const auto& info) {
                           return std::get<0>(info.param).name() + "_" + std::get<1>(info.param);
                         });

}  // namespace
}  // namespace oslo::test
