// Colossal-AI's modes 2d and 2.5d by key alone, on models that know nothing of them: numbers of one
// device, a rank's share of weights, and what moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "tests/models/sequence_language_model.h"

namespace sequence_model {
namespace {

std::string mode(const std::string& name, int size, const std::string& more = "") {
  return R"({"parallel": {"tensor": {"size": )" + std::to_string(size) + R"(, "mode": ")" + name +
         '"' + more + "}}}";
}

/// Bytes of a rank's parts over those of the whole, of the parameters of linear layers and tables.
double share_held(LanguageModel& model) {
  double held = 0, all = 0;
  for (const auto& item : model->named_parameters()) {
    if (item.value().dim() < 2) continue;
    held += static_cast<double>(oslo::local_tensor(item.value()).numel());
    all += static_cast<double>(oslo::full_tensor(item.value().detach()).numel());
  }
  return held / all;
}

class GridModes : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Attention, GridModes, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "ByHand" : "Fused"; });

TEST_P(GridModes, TwoDimensional) {
  expect_equal(four_heads(GetParam()),
               {.length = 9, .batch = 4, .world = 4, .whole = mode("2d", 4)},
               [](const oslo::ParallelModel& parallel, LanguageModel& model) {
                 EXPECT_EQ(parallel.mpu().size("row"), 2);
                 EXPECT_EQ(parallel.mpu().size("column"), 2);
                 EXPECT_NEAR(share_held(model), 0.25, 0.02);
               });
}

TEST_P(GridModes, SizesThatDivideByNothing) {
  Options o;
  o.hidden = 18;
  o.heads = o.key_heads = 3;
  o.by_hand = GetParam();
  o.tied = false;
  expect_equal(o, {.length = 7, .batch = 3, .world = 4, .whole = mode("2d", 4)});
}

TEST_P(GridModes, TwoAndAHalfDimensional) {
  expect_equal(four_heads(GetParam()),
               {.length = 9,
                .batch = 5,
                .world = 8,
                .whole = mode("2.5d", 8, R"(, "depth": 2)"),
                .steps = 2},
               [](const oslo::ParallelModel& parallel, LanguageModel& model) {
                 EXPECT_EQ(parallel.mpu().size("depth"), 2);
                 EXPECT_NEAR(share_held(model), 0.25, 0.02);
               });
}

TEST_P(GridModes, ThreeDimensional) {
  Options o = four_heads(GetParam());
  for (const bool tied : {true, false}) {
    o.tied = tied;
    expect_equal(o, {.length = 9, .batch = 5, .world = 8, .whole = mode("3d", 8), .steps = 2},
                 [](const oslo::ParallelModel& parallel, LanguageModel& model) {
                   EXPECT_EQ(parallel.mpu().size("output"), 2);
                   EXPECT_NEAR(share_held(model), 0.125, 0.02);
                 });
  }
}

TEST(GridModesAlone, WithoutAnExample) {
  expect_equal(four_heads(),
               {.length = 9, .batch = 4, .example = false, .world = 4, .whole = mode("2d", 4)});
}

constexpr int64_t kIn = 8, kM = 12, kK = 20, kN = 16;

/// Two linear layers without bias, kIn to kK to kN, and what all ranks together received over the
/// axes of a grid in a step of kM rows, which come whole and want no gradient.
struct MovedByKey {
  int64_t elements = 0;
  std::string error_of_create_graph;
};

MovedByKey moved_by_key(const std::string& config, int ranks,
                        const std::vector<const char*>& axes) {
  const Tensor x = torch::ones({kM, kIn}, torch::kDouble);
  MovedByKey moved;
  oslo::run_as_threads(ranks, [&](const oslo::World& world) {
    torch::nn::Sequential model = parity::make_seeded(1, [] {
      return torch::nn::Sequential(torch::nn::Linear(torch::nn::LinearOptions(kIn, kK).bias(false)),
                                   torch::nn::Linear(torch::nn::LinearOptions(kK, kN).bias(false)));
    });
    model->to(torch::kDouble);
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(x); };
    const auto parallel = oslo::initialize(model, oslo::Config::parse(config), how);
    const auto received = [&] {
      int64_t elements = 0;
      for (const char* axis : axes) {
        elements += parallel.mpu().group(axis)->ledger().total().elements;
      }
      return elements;
    };
    const int64_t before = received();
    oslo::local_tensor(model->forward(x)).sum().backward();
    std::vector<int> everybody(ranks);
    std::iota(everybody.begin(), everybody.end(), 0);
    int64_t elements = 0;
    for (const int64_t one : world.make_group("all", everybody)->exchange(received() - before)) {
      elements += one;
    }
    std::string error;
    try {
      const Tensor first =
          torch::autograd::grad({model->forward(x).pow(2).sum()}, model->parameters(), {}, true,
                                /*create_graph=*/true)[1];
      first.pow(2).sum().backward();
    } catch (const oslo::Error& refused) {
      error = refused.what();
    }
    if (world.rank() == 0) moved = {elements, error};
  });
  return moved;
}

/// The first layer takes its rows of x and gathers its weight; the second has SUMMA's
/// 3(q-1)(MK + KN), or 2(q-1) of them where both keep what they gathered, which create_graph needs.
TEST(GridModesAlone, WhatIsGatheredIsKeptWhereToldSo) {
  for (const bool keep : {false, true}) {
    const MovedByKey moved =
        moved_by_key(mode("2d", 4, keep ? R"(, "keep_gathered": true)" : ""), 4, {"row", "column"});
    EXPECT_EQ(moved.elements, 2 * kIn * kK + (keep ? 2 : 3) * (kM * kK + kK * kN));
    if (keep) {
      EXPECT_EQ(moved.error_of_create_graph, "");
    } else {
      EXPECT_THAT(moved.error_of_create_graph, ::testing::HasSubstr("\"keep_gathered\": true"));
    }
  }
}

/// Each of d layers of the grid gathers the weight: 3(q-1)(MK + dKN), and the gradients of weights
/// are summed over them, 2(d-1)KN.
TEST(GridModesAlone, TwoAndAHalfDimensionalGathersAgain) {
  const MovedByKey moved =
      moved_by_key(mode("2.5d", 8, R"(, "depth": 2)"), 8, {"depth", "row", "column"});
  EXPECT_EQ(moved.elements,
            2 * 2 * kIn * kK + 2 * kIn * kK + 3 * (kM * kK + 2 * kK * kN) + 2 * kK * kN);
}

TEST(GridModesAlone, BesideDataParallelism) {
  parity::Setup setup;
  setup.world = 8;
  setup.config = mode("2d", 4);
  setup.example = true;
  setup.steps = 2;
  parity::expect_parity(
      setup,
      [] {
        return torch::nn::Sequential(torch::nn::Linear(10, 14),
                                     torch::nn::LayerNorm(torch::nn::LayerNormOptions({14})),
                                     torch::nn::GELU(), torch::nn::Linear(14, 7));
      },
      [](int) {
        return parity::Batch{torch::randn({6, 10}, torch::kDouble),
                             torch::randn({6, 7}, torch::kDouble)};
      },
      [](const Tensor& output, const Tensor& target) { return (output - target).pow(2).mean(); });
}

}  // namespace
}  // namespace sequence_model
