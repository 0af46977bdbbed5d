// The loop of Colossal-AI's users: zero_grad, forward, criterion, backward, step.
#include "tests/engine_test/cases.h"

namespace oslo::test::engines {
namespace {

constexpr const char* kHandler =
    R"(, "gradient_handler": [{"type": "DataParallelGradientHandler"},
                              {"type": "PipelineSharedModuleGradientHandler"}])";

template <typename Criterion>
void expect_one_loop(const Grid& grid, const std::string& more, double clip,
                     const Criterion& criterion, void (PlainLoop::*by_hand)(const Batches&)) {
  SCOPED_TRACE(c10::str(grid.name(), more, ", clipped to ", clip));
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    torch::nn::Sequential model = make_net();
    PlainLoop plain(clip);
    torch::optim::SGD optimizer = make_optimizer(model);
    const Batches batches = unequal_batches();
    const Config config =
        Config::parse(engine_config(grid, (clip > 0 ? kThreeBatches : kThreeUnclipped) + more));
    auto [engine, train_loader] =
        oslo::initialize(model, optimizer, criterion, batches, config, in(world));
    EXPECT_EQ(train_loader.size(), 6u);
    Ledger& moved = engine.parallel().mpu().data_group()->ledger();
    for (int epoch = 0; epoch < 2; ++epoch) {
      engine.train();
      int number = 0;
      for (auto& batch : train_loader) {
        engine.zero_grad();
        const auto calls = moved.total("all_reduce").calls;
        auto output = engine(batch.data);
        auto loss = engine.criterion(output, batch.target);
        engine.backward(loss);
        const bool stepped = engine.step();
        const bool last = ++number % 3 == 0;
        EXPECT_EQ(stepped, last);
        // One bucket of gradients, of the last batch alone.
        if (more.find("zero") == std::string::npos) {
          EXPECT_EQ(moved.total("all_reduce").calls - calls, last && grid.data > 1 ? 1 : 0);
        }
        if (!last) continue;
        (plain.*by_hand)({batches.begin() + number - 3, batches.begin() + number});
        expect_same_weights(model, plain.net);
      }
      EXPECT_EQ(number, 6);
    }
  });
}

template <typename Criterion>
void expect_loop(const Grid& grid, const std::string& more, const Criterion& criterion,
                 void (PlainLoop::*by_hand)(const Batches&)) {
  for (const double clip : {kClip, 0.0}) expect_one_loop(grid, more, clip, criterion, by_hand);
}

const std::vector<Grid> kGrids = {{1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 2}};

TEST(Engine, AccumulatesAndClipsAsALoopByHand) {
  for (const Grid& grid : kGrids) expect_loop(grid, "", mean_loss, &PlainLoop::step);
}

TEST(Engine, GradientHandlersAverageInItsStep) {
  for (const Grid& grid : kGrids) expect_loop(grid, kHandler, mean_loss, &PlainLoop::step);
}

TEST(Engine, TrainsWeightsInParts) {
  const std::string zero = R"(, "zero_optimization": {"enabled": true, "stage": 3)";
  for (const std::string& handler : {std::string(), std::string(kHandler)}) {
    for (const Grid& grid : {Grid{2, 1}, Grid{3, 1}, Grid{2, 2}}) {
      expect_loop(grid, zero + "}" + handler, mean_loss, &PlainLoop::step);
      expect_loop(grid, zero + "}" + handler, counted_loss, &PlainLoop::counted_step);
    }
    const std::string hybrid = zero + R"(, "shard_size": 2})" + handler;
    expect_loop({4, 1}, hybrid, mean_loss, &PlainLoop::step);
    expect_loop({4, 1}, hybrid, counted_loss, &PlainLoop::counted_step);
  }
}

/// Batches, and data ranks, have other numbers of rows that count: 8, 8 and 5 rows, 5 as 3 and 2.
TEST(Engine, ACountedLossIsTheMeanOverAllThatCounts) {
  for (const Grid& grid : kGrids) {
    expect_loop(grid, "", counted_loss, &PlainLoop::counted_step);
    expect_loop(grid, kHandler, counted_loss, &PlainLoop::counted_step);
  }
}

/// The same by a program that computes its loss itself.
TEST(Engine, TakesACountedMeanOfTheProgram) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    torch::nn::Sequential model = make_net();
    PlainLoop plain;
    torch::optim::SGD optimizer = make_optimizer(model);
    const Batches batches = unequal_batches();
    auto [engine, train_loader] =
        oslo::initialize(model, optimizer, mean_loss, batches,
                         Config::parse(engine_config({2}, kThreeBatches)), in(world));
    for (auto& batch : train_loader) {
      engine.zero_grad();
      const CountedLoss loss = counted_loss(engine(batch.data), batch.target);
      engine.backward(oslo::counted_mean(loss.sum, loss.count, engine));
      engine.step();
    }
    plain.counted_step({batches.begin(), batches.begin() + 3});
    plain.counted_step({batches.begin() + 3, batches.end()});
    expect_same_weights(model, plain.net);
  });
}

/// A program that leaves a counted batch out, and goes on with losses of its own.
TEST(Engine, ABatchThatIsLeftOutLeavesNothing) {
  torch::nn::Sequential model = make_net();
  PlainLoop plain(0);
  torch::optim::SGD optimizer = make_optimizer(model);
  const Batches batches = make_batches({4, 4, 4});
  auto [engine, train_loader] =
      oslo::initialize(model, optimizer, counted_loss, batches,
                       Config::parse(engine_config({}, kThreeUnclipped)), in(World::alone()));
  engine.criterion(engine(batches[1].data), batches[1].target);
  for (const Example& batch : batches) {
    engine.zero_grad();
    engine.backward(mean_loss(engine(batch.data), batch.target));
    engine.step();
  }
  plain.step(batches);
  expect_same_weights(model, plain.net);
}

TEST(Engine, ABatchThatThrewIsBegunAgain) {
  torch::nn::Sequential model = make_net();
  PlainLoop plain;
  torch::optim::SGD optimizer = make_optimizer(model);
  const Batches batches = make_batches({4, 4, 4});
  auto [engine, train_loader] =
      oslo::initialize(model, optimizer, mean_loss, batches,
                       Config::parse(engine_config({}, kThreeBatches)), in(World::alone()));
  const auto run = [&engine = engine](const Example& batch, bool fails) {
    engine.zero_grad();
    Tensor loss = engine.criterion(engine(batch.data), batch.target);
    if (fails) {
      loss.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("mine"); });
    }
    engine.backward(loss);
    engine.step();
  };
  run(batches[0], false);
  EXPECT_THROW(run(batches[1], true), std::runtime_error);
  for (const Example& batch : batches) run(batch, false);
  plain.step(batches);
  expect_same_weights(model, plain.net);
}

/// Data parallelism alone.
TEST(Engine, OfAnUntouchedModelAveragesOverAllRanks) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    torch::nn::Sequential model = make_net(), plain = make_net();
    torch::optim::SGD optimizer = make_optimizer(model), by_hand = make_optimizer(plain);
    const Batches batches = make_batches({5, 8});
    auto [engine, loader] =
        oslo::initialize(model, optimizer, mean_loss, batches,
                         Config::parse(R"({"model_parallelism": {"enable": false}})"), in(world));
    for (auto& batch : loader) {
      engine.zero_grad();
      engine.backward(engine.criterion(engine(batch.data), batch.target));
      engine.step();
    }
    for (const Example& batch : batches) {
      by_hand.zero_grad();
      mean_loss(plain->forward(batch.data), batch.target).backward();
      by_hand.step();
    }
    expect_same_weights(model, plain);
  });
}

TEST(Engine, EvaluatesTheModel) {
  torch::nn::Sequential model(torch::nn::Linear(3, 2), torch::nn::Dropout(0.5));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [engine, test_loader] =
      oslo::initialize(model, optimizer, mean_loss, make_batches({4}), {}, in(World::alone()));
  engine.eval();
  EXPECT_FALSE(model->is_training());
  const torch::NoGradGuard no_grad;
  const Tensor x = torch::ones({4, 3});
  EXPECT_TRUE(torch::equal(engine(x), engine(x)));
  engine.train();
  EXPECT_TRUE(model->is_training());
}

}  // namespace
}  // namespace oslo::test::engines
