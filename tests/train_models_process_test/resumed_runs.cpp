// Resumed runs beside runs that were not interrupted: scaled losses, rates of a longer run, and
// what may not change.
#include <gmock/gmock.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/error_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/train_net_process_test/run_train.h"

namespace oslo::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A run of the library's model, on one rank.
Words run_of(const TemporaryDirectory& folder, const std::string& name) {
  const std::string config = folder / "net.json";
  std::ofstream(config) << R"({"model": {"name": "net"}, "dataloader": {"train": {"samples": 50}},
      "optim": {"name": "Adam", "lr": 0.02},
      "train": {"global_batch_size": 10, "train_iter": 6, "log_period": 1}})";
  return {config, "--model-library", TRAINED_LIBRARY,
          "train.output_dir=" + (folder / name).string()};
}

std::vector<double> last_three(const std::vector<double>& numbers) {
  EXPECT_GE(numbers.size(), 3u);
  return {numbers.end() - 3, numbers.end()};
}

/// Three iterations, and three more in another process, are six. Float16's first steps are skipped
/// until the scale has come down, which a resumed run must not begin again.
TEST(ResumedRun, IsTheRunThatWasNotInterrupted) {
  for (const Words& precision :
       {Words{}, Words{"train.amp.enabled=true", "train.amp.dtype=float16"}}) {
    const TemporaryDirectory folder;
    train(run_of(folder, "whole") + precision);
    train(run_of(folder, "parts") + precision + Words{"train.train_iter=3"});
    train(run_of(folder, "parts") + precision + Words{"--resume"});
    for (const char* what : {"total_loss", "lr"}) {
      EXPECT_EQ(last_three(metrics_of(folder / "parts", what)),
                last_three(metrics_of(folder / "whole", what)))
          << what;
    }
  }
}

/// A schedule over more iterations is that one from the first resumed iteration on.
TEST(ResumedRun, HasTheRatesOfItsLongerSchedule) {
  const TemporaryDirectory folder;
  const Words falling{R"(train.scheduler={"name": "WarmupLinearLR", "alpha": 0})"};
  train(run_of(folder, "whole") + falling);
  train(run_of(folder, "parts") + falling + Words{"train.train_iter=3"});
  train(run_of(folder, "parts") + falling + Words{"--resume"});
  EXPECT_EQ(last_three(metrics_of(folder / "parts", "lr")),
            last_three(metrics_of(folder / "whole", "lr")));
}

TEST(ResumedRun, RefusesWhatItCannotChange) {
  const TemporaryDirectory folder;
  train(run_of(folder, "out"));
  const auto resumed = [&](const std::string& override) {
    ToolProcess process(Words{"train"} + run_of(folder, "out") + Words{"--resume", override});
    EXPECT_EQ(process.finish(), 2) << override;
    return process.error();
  };
  expect_contains(resumed("optim.lr=0.5"), {"'optim.lr' is 0.5", "began with 0.02"});
  expect_contains(resumed("optim.weight_decay=0.5"), {"'optim.weight_decay' is 0.5"});
  expect_contains(resumed("optim.betas=[0.5, 0.9]"), {"'optim.betas' is [0.5,0.9]"});
  expect_contains(resumed("train.seed=7"), {"'train.seed' is 7", "1234"});
  expect_contains(resumed("train.global_batch_size=5"), {"'train.global_batch_size' is 5"});
  expect_contains(resumed("train.train_iter=4"),
                  {"has done 6 iterations", "'train.train_iter' is 4"});
}

/// Known before the first iteration, it is told then.
TEST(TrainMistakes, AnEvaluationThatIsTooSmallIsToldAtOnce) {
  const TemporaryDirectory folder;
  ToolProcess process(Words{"train", "-n", "4", kConfigs + "vit_imagenet.json",
                            R"(model.cfg={"img_size": 8, "patch_size": 4, "embed_dim": 8,
                                          "num_heads": 2, "depth": 1, "num_classes": 3})",
                            R"(dataloader.test={"dataset": "synthetic", "samples": 3})",
                            "train.train_iter=2", "train.log_period=1",
                            "train.output_dir=" + folder.path().string()});
  EXPECT_EQ(process.finish(), 2);
  expect_contains(process.error(), {"an evaluation of 3 samples", "need 4"});
  EXPECT_THAT(process.output(), Not(HasSubstr("iteration 1/2")));
}

TEST(TrainMistakes, RanksAreNotStartedBelowALauncher) {
  ToolProcess process(
      {"run", "-n", "2", "--", OSLO_TOOL, "train", kConfigs + "vit_imagenet.json", "2"});
  EXPECT_EQ(process.finish(), 2);
  expect_contains(process.error(), {"below a launcher", "leave the number out"});
}

}  // namespace
}  // namespace oslo::test
