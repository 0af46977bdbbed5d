// Plans by time: what the work of a step is counted as, what rates decide, and what they must not.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "parallelizers/plan/dry/work_meter.h"
#include "parallelizers/plan/layers/structural_plan.h"
#include "parallelizers/plan/search/automatic_plan.h"
#include "parallelizers/plan/search/rates_file.h"
#include "tests/models/gpt2.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"
#include "tests/support/temporary_directory.h"

namespace oslo {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A machine where only what is asked for takes time.
Rates free_machine() {
  Rates rates;
  rates.machine = "free";
  return rates;
}

struct Timed {
  std::vector<LayerPlan> layers;
  PlanSearch search;

  const LayerPlan& at(const std::string& path) const {
    for (const LayerPlan& layer : layers) {
      if (layer.path == path) return layer;
    }
    fail("no layer ", path);
  }
};

template <typename Model>
Timed timed(Model& model, int ranks, const std::function<void()>& example, const Rates& rates,
            int64_t memory_limit = 0) {
  Timed result{plannable_layers(model.ptr()), {}};
  plan_by_structure(result.layers);
  follow_ties(result.layers);
  FirstWrites writes;
  result.search = plan_automatically(result.layers, model.ptr(), ranks, example, writes,
                                     /*cut_own_parameters=*/true, rates, memory_limit);
  return result;
}

/// As the tutorial's: the vocabulary is nine tenths of the parameters.
models::GPT2 tutorial_gpt2() {
  models::GPT2Options options;
  options.vocabulary = 50257;
  options.positions = 64;
  options.hidden = 128;
  return models::GPT2(options);
}

TEST(WorkMeter, CountsOperationsForwardAndBackward) {
  const Rates rates = free_machine();
  const auto work = [&](const std::function<void()>& run) {
    WorkMeter meter(rates);
    run();
    return meter.work();
  };
  const auto x = torch::ones({3, 5}), w = torch::ones({7, 5}).requires_grad_();
  const auto b = torch::ones({7}).requires_grad_();
  const double product = 2 * 3 * 5 * 7;
  EXPECT_EQ(work([&] { torch::mm(x, torch::ones({5, 7})); }).operations, product);
  // Backward: the weight's gradient; that of x, too, where it needs one.
  EXPECT_EQ(work([&] { torch::linear(x, w, b); }).operations, 2 * product);
  const auto y = torch::ones({3, 5}).requires_grad_();
  EXPECT_EQ(work([&] { torch::linear(y, w, b); }).operations, 3 * product);
  EXPECT_EQ(work([&] { torch::linear(y, w, b); }).kept_bytes, 3 * 7 * 4);
  {
    const torch::NoGradGuard no_grad;
    const Work forward = work([&] { torch::linear(y, w, b); });
    EXPECT_EQ(forward.operations, product);
    EXPECT_EQ(forward.kept_bytes, 0);
  }
  EXPECT_EQ(work([&] {
              torch::matmul(torch::ones({2, 3, 5}), torch::ones({2, 5, 7}));
            }).operations,
            2 * product);
  EXPECT_EQ(work([&] {
              torch::conv2d(torch::ones({2, 3, 8, 8}), torch::ones({4, 3, 3, 3}));
            }).operations,
            2.0 * (2 * 4 * 6 * 6) * (3 * 3 * 3));
  EXPECT_EQ(work([&] { x.view({5, 3}).t().add(1).relu(); }).operations, 0);
}

TEST(WorkMeter, CountsBytesAtTheirRates) {
  Rates rates = free_machine();
  rates.copy.points = {{1, 1.0}};  // a second a byte
  const auto seconds = [&](const std::function<void()>& run) {
    WorkMeter meter(rates);
    run();
    return meter.work().seconds;
  };
  const auto x = torch::ones({10});
  EXPECT_DOUBLE_EQ(seconds([&] { x + x; }), 3 * 40);
  EXPECT_DOUBLE_EQ(seconds([&] { x.view({2, 5}); }), 1);  // the call alone
  const auto y = torch::ones({10}).requires_grad_();
  EXPECT_DOUBLE_EQ(seconds([&] { y.neg(); }), 2 * 40 + 2 * 40);
  const auto table = torch::ones({100, 5});
  EXPECT_DOUBLE_EQ(seconds([&] { torch::embedding(table, torch::zeros({2}, torch::kLong)); }) -
                       seconds([&] { torch::zeros({2}, torch::kLong); }),
                   2 * (2 * 5 * 4));  // the rows, not the table
}

TEST(RateCurve, InterpolatesAndExtrapolates) {
  const RateCurve curve{{{100, 1}, {10000, 100}}};
  EXPECT_DOUBLE_EQ(curve.seconds(0), 1);
  EXPECT_DOUBLE_EQ(curve.seconds(100), 1);
  EXPECT_NEAR(curve.seconds(1000), 10, 1e-12);
  EXPECT_DOUBLE_EQ(curve.seconds(20000), 200);
}

TEST(Rates, TestsPlanByThoseOfTheRepository) {
  const Rates rates = read_rates(OSLO_SOURCE_DIR "/tests/data/rates.json");
  EXPECT_EQ(rates.to_json(), Rates::nominal().to_json());
}

TEST(Rates, AreKeptByMachine) {
  const test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "cache" / "oslo" / "rates.json").string();
  Rates one = Rates::nominal(), two = Rates::nominal();
  one.machine = "one";
  two.machine = "two";
  two.graph = 5e-6;
  EXPECT_FALSE(kept_rates(path, "one"));
  EXPECT_TRUE(keep_rates(path, one));
  EXPECT_TRUE(keep_rates(path, two));
  EXPECT_EQ(kept_rates(path, "one")->to_json(), one.to_json());
  EXPECT_EQ(kept_rates(path, "two")->graph, 5e-6);
  two.graph = 6e-6;
  EXPECT_TRUE(keep_rates(path, two));
  EXPECT_EQ(kept_rates(path, "two")->graph, 6e-6);
  EXPECT_THAT(error_of([&] { read_rates(path); }), HasSubstr("the rates of 2 machines"));
  std::ofstream(path) << "{ \"oslo_rates\": [ {\"machine\": \"one\"}, 7 ]";
  EXPECT_FALSE(kept_rates(path, "one"));  // damaged: measured again
  EXPECT_FALSE(keep_rates("/proc/oslo/rates.json", one));
  EXPECT_THAT(error_of([] { read_rates("/nowhere"); }), HasSubstr("there is no file /nowhere"));
  auto json = one.to_json();
  json["copy"] = {{100, 2.0}, {200, 1.0}};
  EXPECT_THAT(error_of([&] { Rates::from_json(json, "here"); }),
              HasSubstr("here: \"copy\" does not ascend at [200, 1]"));
}

TEST(TimePlan, TheTutorialsBlocksAreCut) {
  models::GPT2 model = tutorial_gpt2();
  const auto tokens = torch::zeros({2, 64}, torch::kLong);
  for (const int ranks : {2, 4}) {
    const auto plan = timed(
        model, ranks, [&] { model->forward(tokens); }, Rates::nominal());
    for (const std::string block : {"h.0.", "h.1."}) {
      EXPECT_EQ(plan.at(block + "attn.c_attn").style.style, Style::column) << ranks;
      EXPECT_EQ(plan.at(block + "attn.c_proj").style.style, Style::row) << ranks;
      EXPECT_EQ(plan.at(block + "c_fc").style.style, Style::column) << ranks;
      EXPECT_EQ(plan.at(block + "c_proj").style.style, Style::row) << ranks;
    }
    EXPECT_EQ(plan.at("wte").style.style, Style::vocab);
    EXPECT_EQ(plan.at("wpe").style.style, Style::replicate);
    EXPECT_EQ(plan.search.found.gathers, 0);
    EXPECT_LT(plan.search.found.seconds, plan.search.one_device);
  }
}

TEST(TimePlan, ASmallLayerStaysWholeWhereCuttingItTakesMoreThanATenth) {
  models::GPT2 model = tutorial_gpt2();
  const auto tokens = torch::zeros({2, 64}, torch::kLong);
  Rates slow = Rates::nominal();
  slow.collective.points = {{1e3, 5e-3}, {1e7, 50e-3}};  // a network of another age
  const auto plan = timed(
      model, 2, [&] { model->forward(tokens); }, slow);
  for (const char* path : {"h.0.attn.c_attn", "h.0.attn.c_proj", "h.1.c_fc", "h.1.c_proj"}) {
    EXPECT_EQ(plan.at(path).style.style, Style::replicate) << path;
    EXPECT_THAT(plan.at(path).why, AllOf(HasSubstr("column would move"), HasSubstr("% longer"),
                                         HasSubstr("tenth of the step")));
  }
  EXPECT_EQ(plan.at("wte").style.style, Style::vocab);  // too large to stay whole
  // Unless memory forbids it.
  const int64_t all_cut = timed(
                              model, 2, [&] { model->forward(tokens); }, Rates::nominal())
                              .search.found.memory();
  const auto tight = timed(
      model, 2, [&] { model->forward(tokens); }, slow, all_cut);
  EXPECT_EQ(tight.at("h.1.c_fc").style.style, Style::column);
  EXPECT_LE(tight.search.found.memory(), all_cut);
}

/// Matrices of its own, as an author writes them who needs no layers; one that reads its sizes.
struct MatricesImpl : torch::nn::Module {
  MatricesImpl() {
    up = register_parameter("up", torch::randn({24, 96}));
    down = register_parameter("down", torch::randn({96, 24}));
    scaled = register_parameter("scaled", torch::randn({24, 24}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = torch::matmul(torch::gelu(torch::matmul(x, up)), down);
    return torch::matmul(h, scaled) / std::sqrt(double(scaled.numel()));
  }
  torch::Tensor up, down, scaled;
};
TORCH_MODULE(Matrices);

TEST(TimePlan, MatricesOfAUsersOwnModuleAreCutWhereTheExampleShowsItSafe) {
  const auto placements = [](bool example, bool allowed) {
    Matrices model;
    auto how = test::in(World::fake(0, 2));
    if (example) how.example_inputs = [&] { model->forward(torch::ones({2, 5, 24})); };
    if (!allowed) how.cut_own_parameters = false;
    std::string text;
    for (const auto& entry :
         initialize(model, Config::parse(parity::tensor_parallel(2)), how).plan().entries) {
      text += entry.parameter + " " + entry.placement + "; ";
    }
    return text;
  };
  EXPECT_EQ(placements(true, true), "up shard(1); down shard(0); scaled replicate; ");
  EXPECT_EQ(placements(true, false), "up replicate; down replicate; scaled replicate; ");
  EXPECT_EQ(placements(false, true), "up replicate; down replicate; scaled replicate; ");
}

InitializeOptions dry(models::GPT2& model) {
  auto how = test::in(World::fake(0, 2));
  how.example_inputs = [&] { model->forward(torch::zeros({2, 8}, torch::kLong)); };
  return how;
}

TEST(Forecast, IsPartOfThePlan) {
  models::GPT2 model{models::GPT2Options()};
  auto how = dry(model);
  how.rates = OSLO_SOURCE_DIR "/tests/data/rates.json";
  const Plan plan = initialize(model, Config::parse(parity::tensor_parallel(2)), how).plan();
  EXPECT_GT(plan.forecast.step, plan.forecast.collectives);
  EXPECT_GT(plan.forecast.collectives, 0);
  EXPECT_GT(plan.forecast.one_device, 0);
  EXPECT_EQ(plan.forecast.parameter_bytes, 2 * plan.local_bytes());
  EXPECT_THAT(plan.to_string(),
              AllOf(HasSubstr("expected step: "), HasSubstr("on one device"),
                    HasSubstr("memory a rank: "), HasSubstr("kept for backward"),
                    HasSubstr("nominal rates"), HasSubstr("row would move"), HasSubstr("longer")));
  const auto expected = plan.to_json()["expected"];
  EXPECT_EQ(expected["step_seconds"], plan.forecast.step);
  EXPECT_EQ(expected["kept_bytes"], plan.forecast.kept_bytes);
}

TEST(Forecast, EveryRankPlansByRankZerosRates) {
  const test::TemporaryDirectory directory;
  std::vector<double> steps(2);
  run_as_threads(2, [&](World world) {
    Rates rates = Rates::nominal();
    rates.graph *= 1 + world.rank();
    const std::string path = (directory.path() / std::to_string(world.rank())).string();
    ASSERT_TRUE(keep_rates(path, rates));
    models::GPT2 model = parity::make_seeded(1, [] { return models::GPT2(models::GPT2Options()); });
    auto how = test::in(world);
    how.example_inputs = [&] { model->forward(torch::zeros({2, 8}, torch::kLong)); };
    how.rates = path;
    steps[world.rank()] =
        initialize(model, Config::parse(parity::tensor_parallel(2)), how).plan().forecast.step;
  });
  EXPECT_EQ(steps[0], steps[1]);
}

TEST(Forecast, MemoryThatDoesNotSufficeIsRefusedWithTheFigures) {
  models::GPT2 model{models::GPT2Options()};
  auto how = dry(model);
  how.memory_limit = 10000;
  EXPECT_THAT(error_of([&] { initialize(model, Config::parse(parity::tensor_parallel(2)), how); }),
              AllOf(HasSubstr("a rank needs "), HasSubstr("memory_limit is 10.0 KB")));
  test::expect_untouched(model);
  how.rates = "/nowhere/rates.json";
  EXPECT_THAT(error_of([&] { initialize(model, Config::parse(parity::tensor_parallel(2)), how); }),
              HasSubstr("there is no file /nowhere/rates.json"));
}

}  // namespace
}  // namespace oslo
