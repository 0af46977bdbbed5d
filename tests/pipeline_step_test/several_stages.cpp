// Several stages a rank: what belongs to two of them, and programs that come back to an earlier
// one.
#include <gmock/gmock.h>

#include "tests/models/gpt2.h"
#include "tests/pipeline_step_test/eight_layers.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline_parity::boundaries_of;
using pipeline_parity::expect_parity;
using pipeline_parity::Grid;
using pipeline_parity::Outcome;
using pipeline_parity::Tensors;
using pipeline_parity::Trial;
using torch::Tensor;
namespace F = torch::nn::functional;

models::GPT2 table_gpt2() {
  models::GPT2Options options;
  options.vocabulary = 23;
  options.hidden = 12;
  options.heads = 3;
  options.layers = 4;
  return models::GPT2(options);
}

Tensors some_text(int64_t number) {
  return {torch::randint(23, {number, 7}), torch::randint(23, {number, 7})};
}

const auto word_loss = [](auto& model, const Tensors& micro) {
  return F::cross_entropy(model->forward(micro[0]).view({-1, 23}), micro[1].view({-1}));
};

/// Megatron-LM's table: 4 ranks, 8 micro-batches, 2 stages a rank.
TEST(PipelineSchedule, InterleavedHoldsWhatTheListSays) {
  Trial setup{Grid{1, 1, 4}, "interleaved", 8};
  const auto check = [&](const Outcome& outcome) {
    constexpr int kPeak[] = {11, 9, 7, 5};
    EXPECT_EQ(outcome.last.peak_in_flight, kPeak[outcome.world.rank()]);
  };
  expect_parity(
      setup, eight_layers, [](int) { return rows(16); }, mse, check);
}

TEST(PipelineSchedule, FourStagesARank) {
  Trial setup{Grid{1, 1, 2}, "interleaved", 4};
  setup.chunks = 4;
  expect_parity(
      setup, eight_layers, [](int) { return rows(12); }, mse);
}

/// Down the ranks and back up: table and head are one parameter of the first rank.
TEST(PipelineSchedule, ATableThatTwoStagesOfOneRankUseHasNoCopies) {
  for (const char* kind : {"zbv", "interleaved"}) {
    Trial setup{Grid{1, 1, 2}, kind, 4};
    const auto check = [&](const Outcome& outcome) {
      const auto model = outcome.parallel.module_as<models::GPT2Impl>();
      const int rank = outcome.world.rank();
      const bool v = std::string(kind) == "zbv";
      EXPECT_EQ(layout(model->wte->weight)->stages(), StageSet::of(0) | StageSet::of(3));
      EXPECT_EQ(is_here(model->wte->weight), rank == 0 || !v);
      const auto [below, above] = boundaries_of(outcome.schedule.schedule(), rank);
      const auto& ledger = outcome.parallel.mpu().pipeline_group()->ledger();
      EXPECT_EQ(ledger.total("send").calls, setup.steps * (4 * (below + above) + (v ? 0 : 1)));
    };
    expect_parity(
        setup, table_gpt2, [](int) { return some_text(8); }, word_loss, check);
  }
}

/// What is computed of a parameter of two stages belongs to both, and is computed once where both
/// are on one rank: each stage's backward goes over its own part of the graph only.
struct TwiceUsedImpl : torch::nn::Module {
  TwiceUsedImpl() {
    table = register_module("table", torch::nn::Linear(kWidth, kWidth));
    for (int i = 0; i < 2; ++i) {
      layers.push_back(register_module(c10::str("layer", i), torch::nn::Linear(kWidth, kWidth)));
    }
  }
  Tensor forward(const Tensor& x) {
    const Tensor weight = torch::tanh(table->weight) * table->weight;
    Tensor y = torch::tanh(torch::matmul(x, weight));
    for (auto& layer : layers) y = torch::tanh(layer(y));
    return torch::matmul(y, weight.exp());
  }
  torch::nn::Linear table{nullptr};
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(TwiceUsed);

TEST(PipelineSchedule, AValueOfTwoStagesOfOneRankIsTrainedOnce) {
  for (const char* kind : {"zbv", "interleaved"}) {
    for (const bool example : {true, false}) {
      Trial setup{Grid{1, 1, 2}, kind, 4};
      setup.example = example;
      setup.config = c10::str(R"({"parallel": {"pipeline": {"size": 2, "schedule": ")", kind,
                              R"("}}, "stages": {"table": [0, 3], "layer0": 1, "layer1": 2}})");
      expect_parity(
          setup, [] { return TwiceUsed(); }, [](int) { return rows(8); }, mse);
    }
  }
}

/// A program that computes for the first stage behind the work of the third: its values are sent in
/// the third stage's action, and taken in the fourth's.
struct OutOfOrderImpl : torch::nn::Module {
  OutOfOrderImpl() {
    for (int i = 0; i < 4; ++i) {
      layers.push_back(register_module(c10::str("layer", i), torch::nn::Linear(kWidth, kWidth)));
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < 3; ++i) y = torch::tanh(layers[i](y));
    const Tensor late = torch::tanh(layers[0](x + 1));        // stage 0, behind stage 2
    const Tensor later = torch::tanh(layers[1](late * 0.5));  // stage 1, of it
    return layers[3](y + later);
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(OutOfOrder);

TEST(PipelineSchedule, AProgramMayComeBackToAnEarlierStage) {
  for (const char* kind : {"1f1b", "interleaved", "zbv"}) {
    Trial setup{Grid{1, 1, 2}, kind, 4};
    const bool several = std::string(kind) != "1f1b";
    setup.config =
        c10::str(R"({"parallel": {"pipeline": {"size": )", several ? 2 : 4, R"(, "schedule": ")",
                 kind, R"("}}, "stages": {"layer0": 0, "layer1": 1, "layer2": 2, "layer3": 3}})");
    setup.grid.pipeline = several ? 2 : 4;
    expect_parity(
        setup, [] { return OutOfOrder(); }, [](int) { return rows(8); }, mse);
  }
}

}  // namespace
}  // namespace oslo::test
