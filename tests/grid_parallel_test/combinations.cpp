// Tensor modes and sequences beside pipelines, data replicas, recomputation and mixed precision, on
// up to 8 ranks: numbers of one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/models/sequence_language_model.h"
#include "tests/support/own_draws.h"
#include "tests/support/pipeline_parity.h"

namespace sequence_model {
namespace {

struct Combination {
  const char* name;
  pipeline_parity::Grid grid;  ///< `tensor`: all ranks of a mode
  const char* config;
};

void PrintTo(const Combination& combination, std::ostream* out) {
  *out << combination.name;
}

class OverStages : public ::testing::TestWithParam<Combination> {};

INSTANTIATE_TEST_SUITE_P(
    Every, OverStages,
    ::testing::Values(
        Combination{"pipeline2_2d",
                    {1, 4, 2},
                    R"({"parallel": {"pipeline": 2, "tensor": {"size": 4, "mode": "2d"}}})"},
        Combination{"pipeline2_sequence2",
                    {1, 2, 2},
                    R"({"parallel": {"pipeline": {"size": 2},
                        "tensor": {"size": 2, "mode": "sequence"}}})"},
        Combination{"pipeline2_sequence2_tensor2",
                    {1, 4, 2},
                    R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2,
                        "pipeline_parallel_size": 2}, "context_parallel_size": 2})"},
        Combination{"pipeline2_sequence2_ring",
                    {1, 2, 2},
                    R"({"parallel": {"pipeline": 2, "tensor": {"size": 2, "mode": "sequence"}},
                        "context_attention": "ring"})"},
        Combination{"data2_sequence2_pipeline2",
                    {2, 2, 2},
                    R"({"parallel": {"pipeline": 2, "tensor": {"size": 2, "mode": "sequence"}}})"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(OverStages, EqualsOneDevice) {
  const Options o = four_heads();
  pipeline_parity::Trial trial;
  trial.grid = GetParam().grid;
  trial.config = GetParam().config;
  trial.micro_batches = 2;
  trial.steps = 2;
  pipeline_parity::expect_parity(
      trial, [&] { return LanguageModel(o); },
      [&](int) {
        return pipeline_parity::Tensors{torch::randint(o.words, {8, 9}, torch::kLong)};
      },
      [](LanguageModel& model, const pipeline_parity::Tensors& batch) {
        return model->loss(batch[0]);
      });
}

class Beside : public ::testing::TestWithParam<Combination> {};

const auto kLayouts = ::testing::Values(
    Combination{
        "sequence2", {1, 2, 1}, R"({"parallel": {"tensor": {"size": 2, "mode": "sequence"}})"},
    Combination{"ring3",
                {1, 3, 1},
                R"({"parallel": {"tensor": {"size": 3, "mode": "sequence"}},
                    "context_attention": "ring")"},
    Combination{"sequence2_tensor2",
                {1, 4, 1},
                R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2},
                    "context_parallel_size": 2)"},
    Combination{"sequence2_tensor2_stream",
                {1, 4, 1},
                R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2},
                    "context_parallel_size": 2, "sequence_parallel": true)"},
    Combination{"grid_2d", {1, 4, 1}, R"({"parallel": {"tensor": {"size": 4, "mode": "2d"}})"},
    Combination{"cube_3d", {1, 8, 1}, R"({"parallel": {"tensor": {"size": 8, "mode": "3d"}})"},
    Combination{"sequence2_2d",
                {1, 8, 1},
                R"({"parallel": {"tensor": {"size": 4, "mode": "2d"}},
                    "context_parallel_size": 2)"});

INSTANTIATE_TEST_SUITE_P(Every, Beside, kLayouts,
                         [](const auto& info) { return std::string(info.param.name); });

Case of(const Combination& combination, const std::string& more) {
  Case c;
  c.world = combination.grid.size();
  c.batch = 4;
  c.whole = combination.config + more + "}";
  return c;
}

TEST_P(Beside, Nothing) {
  expect_equal(four_heads(), of(GetParam(), ""));
}

TEST_P(Beside, Recomputation) {
  expect_equal(four_heads(), of(GetParam(), R"(, "activation_checkpoint": {"enabled": true})"));
}

/// bf16: as near to the exact gradients as one device in bf16 is, by a factor.
TEST_P(Beside, MixedPrecision) {
  oslo::run_as_threads(GetParam().grid.size(), [&](oslo::World world) {
    at::set_num_threads(1);
    const auto make = [] { return LanguageModel(four_heads()); };
    auto exact = parity::make_seeded(7, make), model = parity::make_seeded(7, make);
    const Case c = of(GetParam(), R"(, "amp": {"enabled": true}, "master_weights": true)");
    const Tensor ids = words(c, four_heads(), 0);
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->loss(ids).backward(); };
    oslo::initialize(model, oslo::Config::parse(c.whole), how);
    exact->loss(ids).backward();
    model->loss(ids).backward();
    double difference = 0, size = 0;
    parity::for_each_parameter(
        *model, *exact, [&](const std::string&, const Tensor& mine, const Tensor& expected) {
          if (!expected.grad().defined()) return;
          const Tensor whole = oslo::full_tensor(mine.grad());
          EXPECT_EQ(whole.scalar_type(), torch::kFloat);
          difference += (whole - expected.grad()).pow(2).sum().item<double>();
          size += expected.grad().pow(2).sum().item<double>();
        });
    EXPECT_LT(std::sqrt(difference / size), 0.05);
  });
}

}  // namespace
}  // namespace sequence_model
