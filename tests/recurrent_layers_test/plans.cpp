// How recurrent layers are planned: by text, by structure, by what a step would take; what cannot
// be cut, and what the table says.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "parallelizers/placement/carrier/access.h"
#include "tests/recurrent_layers_test/recurrent_net.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_directory.h"

namespace recurrent_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

oslo::PlanEntry entry_of(const oslo::ParallelModel& parallel, const std::string& name) {
  for (const oslo::PlanEntry& entry : parallel.plan().entries) {
    if (entry.parameter == name) return entry;
  }
  oslo::fail("no parameter ", name);
}

/// As rank 0 of pretended ranks: nothing is computed in parallel.
template <typename Model>
oslo::ParallelModel planned(Model& model, int ranks, const std::string& plan = "{}",
                            const std::function<void()>& example = nullptr,
                            const std::string& rates = "") {
  oslo::InitializeOptions how;
  how.world = oslo::World::fake(0, ranks);
  how.example_inputs = example;
  how.rates = rates;
  return oslo::initialize(
      model,
      oslo::Config::parse(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )" +
                          std::to_string(ranks) + R"(}, "plan": )" + plan + "}"),
      how);
}

TEST(RecurrentPlans, OneWordCutsAllOfALayer) {
  for (const auto& [kind, gates, text] :
       {std::tuple{Kind::lstm, 4, "shard(0, blocks 4)"},
        std::tuple{Kind::gru, 3, "shard(0, blocks 3)"}, std::tuple{Kind::relu, 1, "shard(0)"}}) {
    Variant variant{"", kind, 2, true};
    Net net(variant);
    const auto parallel = planned(net, 2, R"({"layer": "column"})");
    int64_t met = 0;
    for (const oslo::PlanEntry& entry : parallel.plan().entries) {
      if (entry.module != "layer") continue;
      ++met;
      EXPECT_EQ(entry.placement, std::string("column: ") + text) << entry.parameter;
      EXPECT_EQ(entry.global_shape[0], gates * 5) << entry.parameter;
      EXPECT_EQ(entry.local_shape[0], gates * 3) << entry.parameter;
      EXPECT_THAT(entry.why, HasSubstr("plan pattern"));
    }
    EXPECT_EQ(met, 16);
    EXPECT_EQ(net->parameters()[0].size(0), gates * 3);
  }
}

TEST(RecurrentPlans, WhatCannotBeCutIsRefusedByName) {
  const auto error = [](const Variant& variant, const std::string& plan) {
    Net net(variant);
    return oslo::test::error_of([&] { planned(net, 2, plan); });
  };
  const Variant lstm{"", Kind::lstm};
  for (const char* style : {"row", "vocab", "column blocks=2", "row scatter=0", "shard(0)"}) {
    EXPECT_THAT(error(lstm, std::string(R"({"layer": ")") + style + "\"}"),
                AllOf(HasSubstr("layer"), HasSubstr("column")))
        << style;
  }
  EXPECT_THAT(error(lstm, R"({"layer": "row"})"),
              AllOf(HasSubstr("recurrent layer with 4 gates"), HasSubstr("use column or replicate"),
                    HasSubstr("seen row")));
  EXPECT_THAT(error(lstm, R"({"layer": "replicate split=0"})"), HasSubstr("layer with one result"));
  EXPECT_THAT(error(lstm, R"({"layer": "column unit=2"})"), HasSubstr("multiple of"));
}

TEST(RecurrentPlans, ProjectedStatesStayWholeAndSayWhy) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(6, 8).proj_size(3));
  torch::nn::Sequential model(lstm, torch::nn::Linear(3, 6));
  EXPECT_THAT(oslo::test::error_of([&] { planned(model, 2, R"({"0": "column"})"); }),
              AllOf(HasSubstr("proj_size"), HasSubstr("use replicate")));
  const auto example = [&] {
    model[1]->as<torch::nn::Linear>()->forward(std::get<0>(lstm(torch::ones({4, 2, 6}))));
  };
  const auto parallel = planned(model, 2, R"({"*": "column"})", example);
  for (const char* name : {"0.weight_ih_l0", "0.weight_hr_l0", "0.bias_hh_l0"}) {
    EXPECT_EQ(entry_of(parallel, name).placement, "replicate");
    EXPECT_THAT(entry_of(parallel, name).why, HasSubstr("proj_size"));
  }
}

TEST(RecurrentPlans, WithoutAnExampleTheyStayWhole) {
  Net net(Variant{"", Kind::gru});
  const auto parallel = planned(net, 2);
  EXPECT_EQ(entry_of(parallel, "layer.weight_hh_l0").placement, "replicate");
  EXPECT_THAT(entry_of(parallel, "layer.weight_hh_l0").why, HasSubstr("a gather at every step"));
  EXPECT_FALSE(oslo::is_placed(net->gru->parameters()[0]));
}

template <typename Recurrent>
struct TaggerImpl : torch::nn::Module {
  TaggerImpl(int64_t width, int64_t units, int64_t layers = 1) {
    words = register_module("words", torch::nn::Embedding(40, width));
    using Options = std::decay_t<decltype(Recurrent(1, 1)->options)>;
    layer = register_module("layer", Recurrent(Options(width, units).num_layers(layers)));
    tags = register_module("tags", torch::nn::Linear(units, 9));
  }
  Tensor forward(const Tensor& x) { return tags(std::get<0>(layer(words(x)))); }
  torch::nn::Embedding words{nullptr};
  Recurrent layer{nullptr};
  torch::nn::Linear tags{nullptr};
};
template <typename Recurrent>
using Tagger = torch::nn::ModuleHolder<TaggerImpl<Recurrent>>;

template <typename Recurrent>
oslo::ParallelModel planned_by_time(Tagger<Recurrent>& tagger, int ranks,
                                    const std::string& rates = "") {
  const Tensor x = torch::zeros({8, 16}, torch::kLong);
  return planned(
      tagger, ranks, "{}", [&] { tagger->forward(x); }, rates);
}

/// A file of rates by which each collective takes at least 100 us more than by the tests' own.
std::string slow_transport(const oslo::test::TemporaryDirectory& folder) {
  std::ifstream in(std::string(OSLO_SOURCE_DIR) + "/tests/data/rates.json");
  auto rates = nlohmann::json::parse(in);
  for (auto& point : rates["oslo_rates"][0]["collective"]) {
    point[1] = point[1].get<double>() + 1e-4;
  }
  std::ofstream(folder / "rates.json") << rates;
  return folder / "rates.json";
}

void expect_cut(const oslo::ParallelModel& parallel, const std::string& placement) {
  for (const char* name : {"weight_ih_l0", "weight_hh_l1", "bias_hh_l1"}) {
    const oslo::PlanEntry entry = entry_of(parallel, std::string("layer.") + name);
    EXPECT_EQ(entry.placement, placement);
    EXPECT_THAT(entry.why, AllOf(HasSubstr("column, "), HasSubstr("replicate would move")));
  }
  EXPECT_LT(parallel.plan().forecast.step, parallel.plan().forecast.one_device);
  EXPECT_THAT(parallel.plan().to_string(), HasSubstr("layer.weight_hh_l0"));
}

/// A gather at every step costs more than a small layer's work; a large one's is worth dividing.
TEST(RecurrentPlans, TimeDecides) {
  const oslo::test::TemporaryDirectory folder;
  const std::string slow = slow_transport(folder);
  Tagger<torch::nn::GRU> small(8, 16), large(256, 512, 2);
  const auto whole = planned_by_time(small, 2, slow);
  EXPECT_EQ(entry_of(whole, "layer.weight_hh_l0").placement, "replicate");
  EXPECT_THAT(entry_of(whole, "layer.weight_hh_l0").why,
              AllOf(HasSubstr("column would move"), HasSubstr("% longer")));
  expect_cut(planned_by_time(large, 2, slow), "column: shard(0, blocks 3)");
  EXPECT_EQ(large->layer->parameters()[0].sizes(), (std::vector<int64_t>{768, 256}));
}

/// A whole LSTM of floats is one kernel, quicker than its parts: two ranks do not make up for it,
/// four do.
TEST(RecurrentPlans, AnLstmIsQuickerInOne) {
  Tagger<torch::nn::LSTM> two(256, 512, 2), four(256, 512, 2), wide(256, 512, 2);
  EXPECT_EQ(entry_of(planned_by_time(two, 2), "layer.weight_hh_l0").placement, "replicate");
  expect_cut(planned_by_time(four, 4), "column: shard(0, blocks 4)");
  wide->to(torch::kFloat64);  // of which LibTorch has no such kernel
  expect_cut(planned_by_time(wide, 2), "column: shard(0, blocks 4)");
}

/// The automatic plan of a layer that is worth it, beside one device.
TEST(RecurrentPlans, AutomaticPlansAreLikeOneDevice) {
  parity::Setup setup;
  setup.world = 3;
  setup.config = parity::tensor_parallel(3);
  setup.example = true;
  setup.steps = 2;
  parity::expect_parity(
      setup, [] { return Tagger<torch::nn::LSTM>(64, 385, 2); },
      [](int) {
        return parity::Batch{torch::randint(40, {3, 12}), torch::randint(9, {36})};
      },
      [](const Tensor& out, const Tensor& target) {
        return torch::nn::functional::cross_entropy(out.reshape({-1, 9}), target);
      },
      [](const parity::Outcome& outcome) {
        EXPECT_EQ(entry_of(outcome.parallel, "layer.weight_ih_l1").placement,
                  "column: shard(0, blocks 4)");
        EXPECT_TRUE(outcome.parallel.plan().gathers.empty()) << outcome.parallel.plan().to_string();
      });
}

/// What a limit of memory demands goes before time.
TEST(RecurrentPlans, MemoryGoesBeforeTime) {
  Tagger<torch::nn::GRU> tagger(8, 30);
  oslo::InitializeOptions how;
  how.world = oslo::World::fake(0, 2);
  const Tensor x = torch::zeros({8, 2}, torch::kLong);
  how.example_inputs = [&] { tagger->forward(x); };
  const auto config = oslo::Config::parse(parity::tensor_parallel(2));
  {
    Tagger<torch::nn::GRU> free(8, 30);
    auto unlimited = how;
    unlimited.example_inputs = [&] { free->forward(x); };
    const auto parallel = oslo::initialize(free, config, unlimited);
    ASSERT_EQ(entry_of(parallel, "layer.weight_ih_l0").placement, "replicate");
    const auto forecast = parallel.plan().forecast;
    how.memory_limit = (forecast.parameter_bytes + forecast.kept_bytes) * 9 / 10;
  }
  EXPECT_EQ(entry_of(oslo::initialize(tagger, config, how), "layer.weight_ih_l0").placement,
            "column: shard(0, blocks 3)");
}

}  // namespace
}  // namespace recurrent_test
