// What the hooks do, and that a training goes on from their checkpoints as if it had never ended.
#include "tests/training_test/trained.h"

#include <sstream>

#include "oslo_cpp/training/hooks/checkpoint_hook.h"
#include "oslo_cpp/training/hooks/early_stopping_hook.h"
#include "oslo_cpp/training/hooks/log_metrics_hook.h"
#include "oslo_cpp/training/hooks/rate_hooks.h"
#include "oslo_cpp/training/hooks/throughput_hook.h"
#include "oslo_cpp/training/rates/warmup_schedules.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test::trained {
namespace {

/// A run over ranks, with everything that has a state.
struct Session {
  using Engine = oslo::Engine<torch::nn::Sequential, decltype(&counted_loss)>;

  Session(World world, const Grid& grid, const Batches& batches, const std::string& folder)
      : optimizer(engines::make_optimizer(model)),
        made(oslo::initialize(model, optimizer, &counted_loss, batches,
                              Config::parse(engines::engine_config(grid, "")), in(world))),
        schedule(optimizer, 12, 3),
        plateau(optimizer, PlateauOptions().patience(0).factor(0.5).threshold(0.9)),
        trainer(made.engine, {std::make_shared<CheckpointHook>(folder, 1, 2),
                              std::make_shared<LRSchedulerHook>(schedule),
                              std::make_shared<PlateauHook>(plateau)}) {}

  torch::nn::Sequential model = engines::make_net();
  torch::optim::SGD optimizer;
  EngineAndLoader<Engine, EngineLoader<const Batches&>> made;
  WarmupCosineLR schedule;
  ReduceLROnPlateau plateau;
  oslo::Trainer<torch::nn::Sequential, decltype(&counted_loss)> trainer;
};

/// Three epochs at once on one device; two epochs on ranks, and the third in another run.
void expect_resumed(const Grid& grid) {
  SCOPED_TRACE(grid.name());
  const TemporaryDirectory folder;
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    const Batches batches = make_batches({8, 7, 5}), tests = make_batches({6, 3});
    OneDevice plain(true);
    WarmupCosineLR schedule(plain.optimizer, 12, 3);
    ReduceLROnPlateau plateau(plain.optimizer,
                              PlateauOptions().patience(0).factor(0.5).threshold(0.9));
    plain.behind_step = [&] { schedule.step(); };
    for (int epoch = 0; epoch < 3; ++epoch) {
      plain.epoch(batches, 1);
      plateau.step(plain.evaluate(tests).at("loss"));
    }
    const auto train = [&](int epochs, bool resumes) {
      Session session(world, grid, batches, folder.path().string());
      if (resumes) session.trainer.resume(folder.path().string());
      EXPECT_EQ(session.trainer.training().epoch, resumes ? 2 : 0);
      auto test_loader = session.made.engine.test_loader(tests);
      session.trainer.fit(session.made.loader, test_loader, oslo::FitOptions().epochs(epochs));
      if (!resumes) return;
      EXPECT_EQ(session.trainer.training().steps, 9);
      EXPECT_EQ(session.schedule.steps(), 9);
      EXPECT_NEAR(session.schedule.get_last_lr()[0], schedule.get_last_lr()[0], 1e-15);
      EXPECT_NEAR(session.plateau.best(), plateau.best(), 1e-9);
      engines::expect_same_weights(session.model, plain.net);
    };
    train(2, false);
    train(3, true);
    if (world.rank() > 0) return;
    std::set<std::string> saved;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      if (entry.is_directory()) saved.insert(entry.path().filename().string());
    }
    EXPECT_THAT(saved, testing::ElementsAre("step-000006", "step-000009"));
  });
}

TEST(Hooks, ATrainingGoesOnFromItsCheckpoint) {
  for (const Grid& grid : {Grid{1, 1, 1}, Grid{2, 1, 1}, Grid{1, 2, 2}}) expect_resumed(grid);
}

/// One rank, and a criterion that a test makes worse as it likes.
struct WithHooks {
  using Loss = std::function<Tensor(const Tensor&, const Tensor&)>;
  WithHooks(const Batches& batches, TrainerHooks hooks)
      : optimizer(engines::make_optimizer(model)),
        made(oslo::initialize(model, optimizer, Loss(mean_loss), batches, {}, in(World::alone()))),
        trainer(made.engine, std::move(hooks)) {}
  torch::nn::Sequential model = engines::make_net();
  torch::optim::SGD optimizer;
  EngineAndLoader<oslo::Engine<torch::nn::Sequential, Loss>, EngineLoader<const Batches&>> made;
  oslo::Trainer<torch::nn::Sequential, Loss> trainer;
};

/// Puts a metric in the place of what was measured.
struct Metric : TrainerHook {
  explicit Metric(std::vector<double> values) : values(std::move(values)) {}
  std::string name() const override { return "Metric"; }
  int priority() const override { return 1; }
  void after_test(Training& training) override {
    training.metrics["test/loss"] = values.at(training.epoch);
  }
  std::vector<double> values;
};

int64_t epochs_until_stopped(const std::vector<double>& metrics,
                             const EarlyStoppingOptions& options) {
  const Batches batches = make_batches({4});
  WithHooks alone(
      batches, {std::make_shared<EarlyStoppingHook>(options), std::make_shared<Metric>(metrics)});
  auto test_loader = alone.made.engine.test_loader(batches);
  alone.trainer.fit(alone.made.loader, test_loader,
                    oslo::FitOptions().epochs(static_cast<int64_t>(metrics.size())));
  return alone.trainer.training().epoch;
}

TEST(Hooks, TrainingEndsWhereNothingGetsBetter) {
  const auto patient = [](int64_t patience) { return EarlyStoppingOptions().patience(patience); };
  EXPECT_EQ(epochs_until_stopped({3, 2, 2, 1, 1, 1, 1, 1}, patient(1)), 6);
  EXPECT_EQ(epochs_until_stopped({3, 2, 2, 1, 1, 1, 1, 1}, patient(0)), 3);
  EXPECT_EQ(epochs_until_stopped({3, 2.5, 2, 1.5, 1}, patient(0).min_delta(0.75)), 2);
  EXPECT_EQ(epochs_until_stopped({1, 2, 3, 2, 1}, patient(1).mode("max")), 5);
  EXPECT_EQ(epochs_until_stopped({NAN, 2, NAN, NAN, 1}, patient(1)), 4);
  EXPECT_THAT(error_of([&] { epochs_until_stopped({1}, patient(1).metric("test/accuracy")); }),
              testing::HasSubstr("no metric 'test/accuracy'; there are test/loss, train/loss"));
  EXPECT_THAT(error_of([&] { EarlyStoppingHook(EarlyStoppingOptions().mode("least")); }),
              testing::HasSubstr("'min' or 'max'"));
}

TEST(Hooks, EarlyStoppingGoesOnFromItsState) {
  EarlyStoppingHook hook;
  hook.load_state_dict({{"seen", true}, {"best", 0.5}, {"bad", 2}});
  EXPECT_EQ(hook.state_dict(), (nlohmann::json{{"seen", true}, {"best", 0.5}, {"bad", 2}}));
}

TEST(Hooks, EpochsAreLogged) {
  std::ostringstream out;
  const Batches batches = make_batches({4});
  WithHooks alone(batches, {std::make_shared<Metric>(std::vector<double>{0.5, 0.5}),
                            std::make_shared<EarlyStoppingHook>(EarlyStoppingOptions().patience(0)),
                            std::make_shared<LogMetricsHook>(out)});
  auto test_loader = alone.made.engine.test_loader(batches);
  alone.trainer.fit(alone.made.loader, test_loader, oslo::FitOptions().epochs(2));
  EXPECT_THAT(out.str(), testing::HasSubstr("epoch 1 of 2  step 1  test/loss 0.5  train/loss "));
  EXPECT_THAT(out.str(), testing::HasSubstr("training ends: test/loss has been no better than 0.5 "
                                            "in 1 evaluations\n"));
}

/// Two data ranks have twice the rows of one in a second: a rank's rows over half a second each.
TEST(Hooks, ThroughputIsOfAllDataRanks) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    const Batches batches = make_batches({8, 8});
    torch::nn::Sequential model = engines::make_net();
    torch::optim::SGD optimizer = engines::make_optimizer(model);
    auto [engine, loader] = oslo::initialize(model, optimizer, mean_loss, batches, {}, in(world));
    oslo::Trainer trainer(engine, {std::make_shared<ThroughputHook>()});
    trainer.fit(loader);
    const Metrics& metrics = trainer.training().metrics;
    const double rows = metrics.at("train/rows_per_second");
    EXPECT_GT(rows, 0);
    EXPECT_NEAR(metrics.at("train/labels_per_second"), rows, 1e-6 * rows);
  });
}

TEST(Hooks, AccuracyOfOtherShapesIsRefused) {
  const Batches batches = make_batches({4});
  WithHooks alone(batches, {std::make_shared<AccuracyHook>()});
  TrainedBatch batch;
  batch.output = torch::zeros({4, 2, 3});
  batch.label = torch::zeros({4, 3});
  Training training{alone.made.engine.parallel(), alone.optimizer};
  EXPECT_THAT(error_of([&] { AccuracyHook().after_test_iter(training, batch); }),
              testing::HasSubstr("outputs [4, 2, 3] and labels [4, 3]"));
}

}  // namespace
}  // namespace oslo::test::trained
