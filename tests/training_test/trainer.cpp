// The loop: what it trains and measures, on any number of ranks, is what one device does.
#include "tests/training_test/trained.h"

#include "tests/support/error_of.h"

namespace oslo::test::trained {
namespace {

/// What was called, in its order.
struct Calls : TrainerHook {
  std::string name() const override { return "Calls"; }
  void before_train(Training&) override { text += "train("; }
  void after_train(Training&) override { text += ")"; }
  void before_train_epoch(Training&) override { text += " epoch["; }
  void after_train_iter(Training& training, const TrainedBatch& batch) override {
    text += c10::str(training.batch, batch.stepped ? "! " : " ");
    EXPECT_FALSE(batch.output.defined());
  }
  void after_train_epoch(Training& training) override {
    EXPECT_TRUE(training.metrics.count("train/loss"));
    text += "]";
  }
  void before_test(Training&) override { text += " test["; }
  void after_test_iter(Training& training, const TrainedBatch&) override {
    text += c10::str(training.batch, " ");
  }
  void after_test(Training& training) override {
    EXPECT_TRUE(training.metrics.count("test/loss"));
    text += "]";
  }
  void after_epoch(Training& training) override { text += c10::str(" over", training.epoch); }
  std::string text;
};

template <typename Criterion>
void expect_trained(const Grid& grid, const Criterion& criterion, size_t of_step) {
  constexpr bool kCounts =
      std::is_same_v<std::invoke_result_t<Criterion, Tensor, Tensor>, CountedLoss>;
  SCOPED_TRACE(c10::str(grid.name(), kCounts ? " counted" : "", ", batches a step ", of_step));
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    torch::nn::Sequential model = engines::make_net();
    OneDevice plain(kCounts);
    torch::optim::SGD optimizer = engines::make_optimizer(model);
    const Batches batches = make_batches({8, 8, 5, 8, 7, 4, 9}), tests = make_batches({6, 6, 4});
    const Config config = Config::parse(engines::engine_config(
        grid, c10::str(R"(, "gradient_accumulation": )", of_step, R"(, "NUM_MICRO_BATCHES": 2)")));
    auto [engine, train_loader] =
        oslo::initialize(model, optimizer, criterion, batches, config, in(world));
    auto test_loader = engine.test_loader(tests);
    oslo::Trainer trainer(engine, {std::make_shared<AccuracyHook>()});
    for (int epoch = 1; epoch <= 2; ++epoch) {
      trainer.fit(train_loader, test_loader, oslo::FitOptions().epochs(epoch));
      const double loss = plain.epoch(batches, of_step);
      EXPECT_NEAR(trainer.training().metrics.at("train/loss"), loss, 1e-9);
      const Metrics tested = plain.evaluate(tests);
      expect_metrics(trainer.evaluate(test_loader), tested);
      expect_metrics(trainer.training().metrics,
                     {{"test/loss", tested.at("loss")}, {"test/accuracy", tested.at("accuracy")}});
      engines::expect_same_weights(model, plain.net);
    }
    EXPECT_TRUE(model->is_training());
    EXPECT_EQ(trainer.training().steps, 2 * (7 / static_cast<int64_t>(of_step)));
  });
}

TEST(Trainer, TrainsAndEvaluatesAsOneDevice) {
  const std::vector<Grid> grids = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 1, 2}};
  for (const Grid& grid : grids) {
    for (const size_t of_step : {1, 3}) {
      expect_trained(grid, mean_loss, of_step);
      expect_trained(grid, counted_loss, of_step);
    }
  }
}

/// An engine over batches, on one rank.
struct Alone {
  using Engine = oslo::Engine<torch::nn::Sequential, decltype(&mean_loss)>;
  explicit Alone(const std::string& more = "", const std::vector<int64_t>& sizes = {4, 4, 4, 4})
      : batches(make_batches(sizes)),
        optimizer(engines::make_optimizer(model)),
        made(oslo::initialize(model, optimizer, &mean_loss, batches,
                              Config::parse(engines::engine_config({}, more)),
                              in(World::alone()))) {}
  Batches batches;
  torch::nn::Sequential model = engines::make_net();
  torch::optim::SGD optimizer;
  EngineAndLoader<Engine, EngineLoader<Batches&>> made;
};

TEST(Trainer, CallsItsHooksInOrder) {
  Alone alone(R"(, "gradient_accumulation": 2)");
  const auto calls = std::make_shared<Calls>();
  oslo::Trainer trainer(alone.made.engine, {calls});
  const Batches tests = make_batches({3, 3});
  auto test_loader = alone.made.engine.test_loader(tests);
  trainer.fit(alone.made.loader, test_loader, oslo::FitOptions().epochs(3).test_interval(2));
  EXPECT_EQ(calls->text,
            "train( epoch[1 2! 3 4! ] over1 epoch[1 2! 3 4! ] test[1 2 ] over2"
            " epoch[1 2! 3 4! ] test[1 2 ] over3)");
  calls->text.clear();
  trainer.fit(alone.made.loader, test_loader, oslo::FitOptions().epochs(4).test_interval(0));
  EXPECT_EQ(calls->text, "train( epoch[1 2! 3 4! ] over4)");
}

TEST(Trainer, EndsAfterItsLastStep) {
  Alone alone(R"(, "gradient_accumulation": 2)");
  const auto calls = std::make_shared<Calls>();
  oslo::Trainer trainer(alone.made.engine, {calls});
  trainer.fit(alone.made.loader, oslo::FitOptions().epochs(9).max_steps(3));
  EXPECT_EQ(calls->text, "train( epoch[1 2! 3 4! ] over1 epoch[1 2! ] over2)");
  EXPECT_EQ(trainer.training().steps, 3);
}

TEST(Trainer, RefusesWhatCannotBe) {
  Alone alone;
  const auto calls = std::make_shared<Calls>();
  EXPECT_THAT(error_of([&] {
                oslo::Trainer(alone.made.engine, {calls, calls});
              }),
              testing::HasSubstr("two hooks are called 'Calls'"));
  oslo::Trainer trainer(alone.made.engine);
  EXPECT_THAT(error_of([&] { trainer.fit(alone.made.loader, oslo::FitOptions().epochs(0)); }),
              testing::HasSubstr("epochs 0"));
}

TEST(MetricSums, ARankWithoutANameIsRefused) {
  run_as_threads(2, [](World world) {
    const MPU mpu(world, MpuOptions());
    MetricSums sums;
    sums.add("loss", 3.0 + world.rank(), 1 + world.rank());
    EXPECT_NEAR(sums.means(mpu).at("loss"), 7.0 / 3, 1e-12);
    if (world.rank() == 1) sums.add("more", 0.0, 0);
    EXPECT_THAT(error_of([&] { sums.means(mpu); }),
                testing::HasSubstr("the names of metrics differs between ranks"));
    sums.clear();
    sums.add("nothing", torch::full({}, NAN), 0);
    EXPECT_TRUE(std::isnan(sums.means(mpu).at("nothing")));
  });
}

}  // namespace
}  // namespace oslo::test::trained
