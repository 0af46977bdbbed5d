// Models cut over axes of any name and number, each against one device; what plans may not say.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/models/small.h"
#include "tests/support/error_of.h"
#include "tests/support/errors_of.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using models::Mlp;
using models::Tied;
using parity::make_seeded;
using parity::tensor_parallel;
using test::errors_of;
using test::expect_untouched;
using test::in;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

parity::Batch tokens(int) {
  return {torch::randint(10, {4, 5}), torch::randint(10, {4, 5})};
}

torch::Tensor token_loss(const torch::Tensor& logits, const torch::Tensor& target) {
  return torch::nn::functional::cross_entropy(logits.view({-1, 10}), target.reshape({-1}));
}

std::string planned(const std::string& plan) {
  return R"({"model_parallelism": {"enable": true}, "plan": )" + plan + "}";
}

/// Trains a tied model over `axes` and compares every number with one device's.
void expect_tied_parity(const std::vector<Axis>& axes, const std::string& config,
                        const std::function<void(const parity::Outcome&)>& after = {},
                        bool example = false) {
  SCOPED_TRACE(factors(axes));
  parity::Setup setup;
  setup.world = 1;
  for (const Axis& axis : axes) setup.world *= axis.size;
  setup.config = config;
  setup.example = example;
  setup.tweak = [&](InitializeOptions& how) { how.axes = axes; };
  parity::expect_parity(
      setup, [] { return Tied(); }, tokens, token_loss, after);
}

PlanEntry entry_of(const parity::Outcome& run, const std::string& parameter) {
  for (const PlanEntry& entry : run.parallel.plan().entries) {
    if (entry.parameter == parameter) return entry;
  }
  fail("no parameter ", parameter);
}

std::string placement_of(const parity::Outcome& run, const std::string& parameter) {
  return entry_of(run, parameter).placement;
}

TEST(Axes, TheUsualAxesAreTheUsualSizes) {
  run_as_threads(6, [](World world) {
    std::vector<std::string> plans;
    std::vector<std::vector<torch::Tensor>> weights;
    for (const bool named : {false, true}) {
      Tied model = make_seeded(3, [] { return Tied(); });
      InitializeOptions how = in(world);
      if (named) how.axes = {{"data", 2}, {"tensor", 3}};
      const auto parallel =
          initialize(model, Config::parse(named ? planned("{}") : tensor_parallel(3)), how);
      DistributedDataParallel<Tied> ddp(model, parallel.mpu().get_data_parallel_group());
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      for (int step = 0; step < 2; ++step) {
        const auto batch = make_seeded(20 + step + 5 * parallel.mpu().get_data_parallel_rank(),
                                       [&] { return tokens(step); });
        optimizer.zero_grad();
        token_loss(ddp.forward(batch.input), batch.target).backward();
        parallel.clip_grad_norm_(0.5);
        optimizer.step();
      }
      plans.push_back(parallel.plan().to_json().dump(1));
      weights.emplace_back();
      for (const auto& p : model->parameters()) weights.back().push_back(local_tensor(p).detach());
    }
    EXPECT_EQ(plans[0], plans[1]);
    EXPECT_THAT(plans[0], HasSubstr("all_reduce"));
    for (size_t i = 0; i < weights[0].size(); ++i) {
      EXPECT_TRUE(at::equal(weights[0][i], weights[1][i])) << i;
    }
  });
}

TEST(Axes, TheOneAxisThatCutsLayersMayHaveAnyName) {
  for (const bool example : {false, true}) {
    expect_tied_parity(
        {{"data", 2}, {"row", 3}}, planned("{}"),
        [](const parity::Outcome& run) {
          EXPECT_THAT(placement_of(run, "mlp.up.weight"), HasSubstr("shard"));
          EXPECT_EQ(run.parallel.mpu().get_tensor_parallel_world_size(), 3);
        },
        example);
  }
}

TEST(Axes, AStyleMayNameItsAxis) {
  const std::string plan =
      R"({"wte": "blue: vocab", "mlp.up": "blue: column", "mlp.down": "blue: row"})";
  expect_tied_parity({{"blue", 3}}, planned(plan), [](const parity::Outcome& run) {
    EXPECT_EQ(placement_of(run, "mlp.up.weight"), "column: shard(0)");
    EXPECT_EQ(placement_of(run, "mlp.down.weight"), "row: shard(1)");
    EXPECT_EQ(placement_of(run, "mlp.down.bias"), "replicate");
    EXPECT_EQ(placement_of(run, "wte.weight"), "vocab: shard(0)");
  });
}

TEST(Axes, OnePlacementAnAxisOnTwo) {
  const std::string plan = R"({"mlp.up": "row: row; column: column",
                               "mlp.down": "column: row; row: column", "wte": "column: column"})";
  const auto check = [](const parity::Outcome& run) {
    EXPECT_EQ(placement_of(run, "mlp.up.weight"), "row shard(1); column shard(0)");
    EXPECT_EQ(placement_of(run, "mlp.up.bias"), "column shard(0)");
    EXPECT_EQ(placement_of(run, "mlp.down.weight"), "row shard(0); column shard(1)");
    const auto* model = run.parallel.module()->as<models::TiedImpl>();
    EXPECT_EQ(model->mlp->up->weight.sizes(), at::IntArrayRef({4, 4}));  // of 12 x 8
    // Neither class would be true.
    EXPECT_EQ(entry_of(run, "mlp.up.weight").module_after, "torch::nn::Linear");
  };
  expect_tied_parity({{"row", 2}, {"column", 3}}, planned(plan), check);
  expect_tied_parity({{"row", 2}, {"data", 2}, {"column", 3}}, planned(plan), check);
  expect_tied_parity({{"row", 2}, {"column", 3}}, planned(plan), check, /*example=*/true);
}

TEST(Axes, TwoAxesMayCutOneDimension) {
  const std::string plan = R"({"mlp.up": "row: column; column: column",
                               "mlp.down": "row: row; column: row", "wte": "row: vocab"})";
  for (const bool example : {false, true}) {
    expect_tied_parity(
        {{"row", 2}, {"column", 3}}, planned(plan),
        [](const parity::Outcome& run) {
          const auto* model = run.parallel.module()->as<models::TiedImpl>();
          EXPECT_EQ(model->mlp->up->weight.sizes(), at::IntArrayRef({2, 8}));
          EXPECT_EQ(model->mlp->down->weight.sizes(), at::IntArrayRef({8, 2}));
          EXPECT_EQ(entry_of(run, "mlp.up.weight").module_after, "oslo::nn::ColumnParallelLinear");
        },
        example);
  }
}

TEST(Axes, TheSearchPlansTheTensorAxisBesideOthers) {
  const std::string plan = R"({"mlp.up": "row: row; tensor: column"})";
  expect_tied_parity(
      {{"row", 2}, {"tensor", 3}}, planned(plan),
      [](const parity::Outcome& run) {
        EXPECT_EQ(placement_of(run, "mlp.up.weight"), "row shard(1); tensor shard(0)");
        EXPECT_EQ(placement_of(run, "mlp.down.weight"), "row: shard(1)");
      },
      /*example=*/true);
}

TEST(Axes, WithoutATensorAxisLayersAreCutAsAskedOnly) {
  const std::string plan = R"({"mlp.up": "row: column"})";
  expect_tied_parity({{"row", 2}, {"column", 2}}, planned(plan), [](const parity::Outcome& run) {
    EXPECT_EQ(placement_of(run, "mlp.down.weight"), "replicate");
    EXPECT_THAT(entry_of(run, "mlp.down.weight").why, HasSubstr("several axes cut layers"));
  });
}

TEST(Axes, LayersByHandTakeAnAxis) {
  run_as_threads(6, [](World world) {
    const MPU mpu(world, MpuOptions().axes({{"row", 2}, {"column", 3}}));
    const auto layer_over = [&](const std::string& axis) {
      return make_seeded(
          5, [&] { return nn::Linear(nn::LinearOptions(8, 10).parallel("col").axis(axis), mpu); });
    };
    torch::nn::Linear plain = make_seeded(5, [] { return torch::nn::Linear(8, 10); });
    const torch::Tensor x = make_seeded(6, [] { return torch::randn({3, 8}); });
    const torch::Tensor expected = plain->forward(x);
    plain->zero_grad();
    expected.square().sum().backward();
    for (const auto& [axis, ranks] : {std::pair{"row", 2}, {"column", 3}, {"tensor", 6}}) {
      nn::Linear layer = layer_over(axis);
      EXPECT_EQ(layer->weight.size(0), 10 / ranks + (mpu.rank(axis) < 10 % ranks)) << axis;
      const torch::Tensor y = layer->forward(x);
      parity::expect_close(full_tensor(y).detach(), expected.detach(), axis, {1e-5, 1e-6});
      y.square().sum().backward();
      parity::expect_close(full_tensor(layer->weight.grad()), plain->weight.grad(), axis,
                           {1e-5, 1e-5});
    }
    EXPECT_THAT(test::error_of([&] { layer_over("rwo"); }), HasSubstr("no axis named \"rwo\""));
  });
}

/// What every rank throws of an initialize over `axes`, which leaves the model as it was.
std::vector<std::string> refused(const std::vector<Axis>& axes, const std::string& config) {
  int world = 1;
  for (const Axis& axis : axes) world *= axis.size;
  return errors_of(world, [&](World own) {
    Tied model = make_seeded(1, [] { return Tied(); });
    InitializeOptions how = in(own);
    how.axes = axes;
    try {
      initialize(model, Config::parse(config), how);
    } catch (...) {
      expect_untouched(model);
      throw;
    }
  });
}

TEST(Axes, WhatIsRefused) {
  const std::vector<Axis> two = {{"row", 2}, {"column", 2}};
  EXPECT_THAT(refused(two, planned(R"({"mlp.up": "column"})")),
              Each(AllOf(HasSubstr("mlp.up may be cut over row and column"),
                         HasSubstr("\"row: column\""))));
  EXPECT_THAT(refused(two, planned(R"({"mlp.up": "replicate split=-1"})")),
              Each(HasSubstr("mlp.up may be cut over row and column")));
  EXPECT_THAT(refused(two, planned(R"({"mlp.up": "rwo: column"})")),
              Each(HasSubstr("rwo is no axis that layers are cut over; these are row and column")));
  EXPECT_THAT(refused({{"data", 2}, {"row", 2}}, planned(R"({"mlp.up": "data: column"})")),
              Each(HasSubstr("data is no axis that layers are cut over; these are row")));
  EXPECT_THAT(refused(two, planned(R"({"mlp.up": "row: column; row: row"})")),
              Each(HasSubstr("gives the axis row twice")));
  EXPECT_THAT(refused(two, planned(R"({"mlp.up": "row: column; row"})")),
              Each(HasSubstr("cannot read \" row\"")));
  EXPECT_THAT(refused(two, planned(R"({"wte": "column: row"})")),
              Each(HasSubstr("is an embedding")));
  EXPECT_THAT(refused(two, planned(R"({"mlp.up": "row: column unit=6; column: column unit=4"})")),
              Each(HasSubstr("mlp.up")));
  EXPECT_THAT(refused(two, planned(R"({"wte": "row: vocab", "lm_head": "column: column"})")),
              Each(HasSubstr("shares its weight with")));
  EXPECT_THAT(refused(two, tensor_parallel(4)),
              Each(HasSubstr("the grid is given twice, by InitializeOptions::axes (row 2 x")));
  EXPECT_THAT(refused({{"pipeline", 4}, {"row", 1}}, planned("{}")),
              Each(HasSubstr("a pipeline of 4 stages needs as many layers, the model has")));
  EXPECT_THAT(refused({{"row", 2}, {"row", 2}}, planned("{}")),
              Each(HasSubstr("the axis row is given twice")));
}

TEST(Axes, RanksThatNameThemDifferentlyAreTold) {
  const auto errors = errors_of(2, [](World world) {
    Mlp model = make_seeded(1, [] { return Mlp(); });
    InitializeOptions how = in(world);
    how.axes = {{world.rank() == 0 ? "row" : "column", 2}};
    initialize(model, Config::parse(planned("{}")), how);
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 0 has axes row 2, rank 1 has axes column 2")));
}

}  // namespace
}  // namespace oslo
