// What a training shows of itself: a line of progress, a picture of the loss, its config.
#include "tests/training_test/trained.h"

#include <fstream>
#include <sstream>

#include "oslo_cpp/training/hooks/loss_hook.h"
#include "oslo_cpp/training/hooks/progress_hook.h"
#include "oslo_cpp/training/hooks/run_config_hook.h"
#include "oslo_cpp/training/show/curve_picture.h"
#include "oslo_cpp/training/show/peak_memory.h"
#include "oslo_cpp/training/show/text_file.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test::trained {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ProgressLine, SaysHowFarAndHowLong) {
  TrainingProgress progress;
  progress.epoch = 1;
  progress.epochs = 3;
  progress.batch = 10;
  progress.batches = 20;
  progress.steps = 30;
  progress.loss = 1.23456;
  progress.labels_per_second = 12300.7;
  progress.seconds_a_batch = 2;
  progress.memory = 1'200'000'000;
  EXPECT_EQ(progress_line(progress, true),
            "[############............]  50 %  epoch 2 of 3  step 30  loss 1.235  12300 labels/s  "
            "1200.0 MB  1 min 0 s left");
  EXPECT_THAT(progress_line(progress, false), testing::StartsWith("epoch 2 of 3  step 30  loss"));
  // Of 40 steps 30 are through: 10 of 30 batches are left.
  progress.max_steps = 40;
  EXPECT_THAT(progress_line(progress, true), HasSubstr("75 %"));
  EXPECT_THAT(progress_line(progress, true), HasSubstr("20 s left"));
}

TEST(ProgressLine, OfWhatNobodyKnowsSaysNothing) {
  TrainingProgress progress;
  progress.epochs = 2;
  progress.batch = 3;
  progress.loss = NAN;
  EXPECT_EQ(progress_line(progress, true), "epoch 1 of 2  step 0  loss nan");
  EXPECT_LT(share_of(progress), 0);
}

template <typename Hook>
void train(const Batches& batches, const std::shared_ptr<Hook>& hook, int epochs) {
  torch::nn::Sequential model = engines::make_net();
  torch::optim::SGD optimizer = engines::make_optimizer(model);
  auto [engine, loader] =
      oslo::initialize(model, optimizer, mean_loss, batches, {}, in(World::alone()));
  oslo::Trainer trainer(engine, {hook});
  trainer.fit(loader, oslo::FitOptions().epochs(epochs));
}

TEST(ProgressHook, WritesALineEverySoManyBatchesOrOneOver) {
  const Batches batches = make_batches({4, 4, 4});
  std::ostringstream lines, terminal;
  train(batches, std::make_shared<ProgressHook>(lines, false, 2), 2);
  EXPECT_THAT(lines.str(), testing::StartsWith("epoch 1 of 2  step 2  loss "));
  EXPECT_THAT(lines.str(), HasSubstr("\nepoch 2 of 2  step 4  loss "));
  const std::string text = lines.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_THAT(lines.str(), Not(HasSubstr("\r")));
  train(batches, std::make_shared<ProgressHook>(terminal, true), 1);
  EXPECT_THAT(terminal.str(), testing::StartsWith("\r[########................]  33 %  epoch 1"));
  EXPECT_THAT(terminal.str(), testing::EndsWith("\r\033[K"));
  EXPECT_THAT(terminal.str(), Not(HasSubstr("\n")));
  EXPECT_THAT(error_of([] { ProgressHook(0); }), HasSubstr("every 0"));
}

/// At least what is allocated and written.
TEST(ProgressHook, SeesMemory) {
  const Tensor large = torch::ones({64 << 20}, torch::kUInt8);
  EXPECT_GT(peak_memory(large.device()), large.numel());
}

TEST(CurvePicture, DrawsValuesOverSteps) {
  const std::string svg =
      curve_picture({{"train/loss", {{0, 4}, {5, NAN}, {10, 2}}}, {"a < b & c", {{5, 3}}}});
  // The corners: left and top, right and bottom.
  EXPECT_THAT(svg, HasSubstr("points='64,28 624,324 '"));
  EXPECT_THAT(svg, HasSubstr("points='344,176 '"));
  EXPECT_THAT(svg, HasSubstr(">a &lt; b &amp; c<"));
  EXPECT_THAT(svg, HasSubstr(">3.5<"));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_THAT(curve_picture({{"nothing", {}}}), HasSubstr("points=''"));
  EXPECT_THAT(curve_picture({{"flat", {{1, 2}, {2, 2}}}}), HasSubstr("points='64,176 624,176 '"));
}

/// Every second batch, over the rows of all data ranks.
TEST(LossHook, KeepsTheLossOfAllDataRanks) {
  const TemporaryDirectory folder;
  const Batches batches = make_batches({8, 7, 5, 6}), tests = make_batches({4});
  for (const Grid& grid : {Grid{1, 1, 1}, Grid{2, 1, 1}, Grid{2, 1, 2}}) {
    const std::string picture = (folder.path() / grid.name() / "loss.svg").string();
    run_as_threads(grid.size(), [&](World world) {
      at::set_num_threads(1);
      torch::nn::Sequential model = engines::make_net();
      OneDevice plain(false);
      torch::optim::SGD optimizer = engines::make_optimizer(model);
      auto [engine, loader] =
          oslo::initialize(model, optimizer, mean_loss, batches,
                           Config::parse(engines::engine_config(grid, "")), in(world));
      const auto hook = std::make_shared<LossHook>(picture, 2);
      auto test_loader = engine.test_loader(tests);
      oslo::Trainer(engine, {hook}).fit(loader, test_loader);
      Curve expected;
      for (size_t i = 0; i < batches.size(); ++i) {
        if (i % 2 == 1) expected.points.emplace_back(i + 1, plain.mean(batches[i]).item<double>());
        plain.epoch({batches[i]}, 1);
      }
      const auto near = [](const Curve& seen, const Curve& expected) {
        ASSERT_EQ(seen.points.size(), expected.points.size());
        for (size_t i = 0; i < seen.points.size(); ++i) {
          EXPECT_EQ(seen.points[i].first, expected.points[i].first);
          EXPECT_NEAR(seen.points[i].second, expected.points[i].second, 1e-9);
        }
      };
      near(hook->train(), expected);
      near(hook->test(), {"", {{4, plain.evaluate(tests).at("loss")}}});
      LossHook resumed;
      resumed.load_state_dict(nlohmann::json::parse(hook->state_dict().dump()));
      near(resumed.train(), expected);
    });
    EXPECT_THAT(text_of(picture),
                testing::AllOf(testing::StartsWith("<svg"), HasSubstr("test/loss")));
  }
}

TEST(LossHook, APictureThatCannotBeWrittenIsToldOnAllRanks) {
  run_as_threads(2, [](World world) {
    EXPECT_THAT(error_of([&] { write_text_once(world, "/dev/null/loss.svg", [] { return "x"; }); }),
                HasSubstr("/dev/null/loss.svg cannot be written"));
  });
}

TEST(RunConfig, IsReadAgain) {
  const TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    torch::nn::Sequential model = engines::make_net();
    torch::optim::SGD optimizer = engines::make_optimizer(model);
    const Batches batches = make_batches({4});
    Config config = Config::parse(engines::engine_config({1, 1, 2}, ""));
    config.set("clip_grad_norm=0.5");
    auto [engine, loader] =
        oslo::initialize(model, optimizer, mean_loss, batches, config, in(world));
    oslo::Trainer(engine, {std::make_shared<RunConfigHook>((folder.path() / "out").string())})
        .fit(loader);
    if (world.rank() > 0) return;
    const std::string path = (folder.path() / "out" / "run_config.json").string();
    EXPECT_THAT(text_of(path), HasSubstr("2 ranks: data 1 tensor 1 pipeline 2\n"));
    EXPECT_EQ(Config::from_file(path).to_json(), engine.parallel().config().to_json());
    EXPECT_EQ(Config::from_file(path).values().engine.clip_grad_norm, 0.5);
  });
}

}  // namespace
}  // namespace oslo::test::trained
