// The tutorials of pipelines as a user runs them, on ranks that are processes.
#include <gmock/gmock.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/error_of.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tool_process.h"

namespace oslo::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// The lines that begin with `word`.
Words lines_with(const std::string& text, const std::string& word) {
  Words found;
  for (const std::string& line : lines_of(text)) {
    if (line.find(word) != std::string::npos) found.push_back(line.substr(line.find(word)));
  }
  return found;
}

TEST(PipelineTutorials, TwoLayersOnTwoRanksTrainAsAlone) {
  ToolProcess two({"run", "-n", "2", "--", TUTORIALS "/two_layers"});
  ToolProcess one({"run", "-n", "1", "--", TUTORIALS "/two_layers"});
  ASSERT_EQ(two.finish(), 0) << two.error();
  ASSERT_EQ(one.finish(), 0) << one.error();
  EXPECT_THAT(two.output(), HasSubstr("rank 0: first.weight first.bias\n"));
  EXPECT_THAT(two.output(), HasSubstr("rank 1: second.weight second.bias\n"));
  EXPECT_THAT(one.output(), HasSubstr("rank 0: first.weight first.bias second.weight second.bias"));
  const Words steps = lines_with(two.output(), "step ");
  EXPECT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps, lines_with(one.output(), "step "));
  EXPECT_THAT(two.output(), HasSubstr("correct: 24 of 24"));
}

/// The same losses to the digits that are printed, over stages and data ranks.
TEST(PipelineTutorials, AnEnginesEpochsOnAnyRanksAreThoseAlone) {
  ToolProcess one({"run", "-n", "1", "--", TUTORIALS "/epoch_loop"});
  ASSERT_EQ(one.finish(), 0) << one.error();
  const Words epochs = lines_with(one.output(), "epoch "),
              correct = lines_with(one.output(), "correct: ");
  EXPECT_EQ(epochs.size(), 10u);
  ASSERT_EQ(correct.size(), 1u);
  EXPECT_THAT(correct[0], testing::MatchesRegex("correct: (9[0-9]|100) of 100"));
  for (const char* ranks : {"2", "4"}) {
    ToolProcess several({"run", "-n", ranks, "--", TUTORIALS "/epoch_loop"});
    ASSERT_EQ(several.finish(), 0) << several.error();
    EXPECT_EQ(lines_with(several.output(), "epoch "), epochs) << ranks;
    EXPECT_EQ(lines_with(several.output(), "correct: "), correct) << ranks;
  }
}

/// Means and rates to the digits that are printed; a run of one layout goes on in another.
TEST(PipelineTutorials, ATrainersEpochsOnAnyRanksAreThoseAlone) {
  const TemporaryDirectory folder;
  const auto run = [&](const char* ranks, const std::string& in, Words& epochs) {
    ToolProcess trained(
        {"run", "-n", ranks, "--", TUTORIALS "/trainer", (folder.path() / in).string()});
    ASSERT_EQ(trained.finish(), 0) << trained.error();
    epochs = lines_with(trained.output(), "test/accuracy ");
    EXPECT_EQ(lines_with(trained.output(), "accuracy 0.975 after 56 steps").size(), 1u);
  };
  Words one, several;
  run("1", "one", one);
  EXPECT_EQ(one.size(), 8u);
  for (const char* ranks : {"2", "4"}) {
    run(ranks, ranks, several);
    EXPECT_EQ(several, one) << ranks;
    EXPECT_TRUE(std::filesystem::exists(folder.path() / ranks / "loss.svg"));
  }
  run("4", "2", several);
  EXPECT_EQ(several, Words());
}

/// As at a user's, whose machine has no file of rates yet: without tensor ranks there is nobody to
/// measure collectives with.
TEST(PipelineTutorials, APipelineAloneMeasuresItsMachineAndKeepsThat) {
  const TemporaryDirectory folder;
  const Words run{"run",
                  "-n",
                  "2",
                  "--",
                  "env",
                  "-u",
                  "OSLO_RATES",
                  "XDG_CACHE_HOME=" + folder.path().string(),
                  TUTORIALS "/two_layers"};
  ToolProcess first(run);
  EXPECT_EQ(first.finish(), 0) << first.error();
  EXPECT_THAT(first.error(), HasSubstr("measuring once"));
  ToolProcess second(run);
  EXPECT_EQ(second.finish(), 0) << second.error();
  EXPECT_THAT(second.error(), Not(HasSubstr("measuring once")));
}

/// What LiBai's document prints, line for line, in any order of the ranks.
void expect_printed(const char* ranks, const char* program, const char* shape) {
  ToolProcess run({"run", "-n", ranks, "--", TUTORIALS + std::string(program)});
  ASSERT_EQ(run.finish(), 0) << run.error();
  std::vector<testing::Matcher<std::string>> lines;
  for (int rank = 0; rank < std::stoi(ranks); ++rank) {
    lines.emplace_back("rank: " + std::to_string(rank) + ", tensor shape: " + shape);
  }
  EXPECT_THAT(lines_with(run.output(), "rank: "), testing::UnorderedElementsAreArray(lines));
}

TEST(PipelineTutorials, HugeFcPrintsLiBaisShapes) {
  expect_printed("2", "/huge_fc", "[32, 16384]");
}

TEST(PipelineTutorials, Mlp2DPrintsLiBaisShapes) {
  expect_printed("4", "/mlp_2d", "[16, 1024]");
}

TEST(PipelineTutorials, BertsPlanHasLiBaisStages) {
  const std::string program = TUTORIALS "/bert_plan";
  ToolProcess rule({"plan", "-n", "8", "--", program, "--hidden", "64"});
  ASSERT_EQ(rule.finish(), 0) << rule.error();
  EXPECT_THAT(rule.output(), HasSubstr("8 ranks: pipeline 4 x tensor 2"));
  EXPECT_THAT(rule.output(), HasSubstr("pipeline of 4 stages, by LiBai's rule"));
  for (const char* layers :
       {"0      encoders.0 to encoders.5 ", "1      encoders.6 to encoders.12 ",
        "2      encoders.13 to encoders.19 ", "3      encoders.20 to encoders.23 "}) {
    EXPECT_THAT(rule.output(), HasSubstr(layers));
  }
  ToolProcess time(
      {"plan", "-n", "8", "--", program, "--hidden", "64", "--set", "balance_stages=time"});
  ASSERT_EQ(time.finish(), 0) << time.error();
  EXPECT_THAT(time.output(), HasSubstr("pipeline of 4 stages, balanced by time"));
  // The last stage has the head, which takes far longer than a layer of 64 features.
  EXPECT_THAT(time.output(), Not(HasSubstr("encoders.20 to encoders.23")));
  ToolProcess wrong({"plan", "-n", "8", "--", program, "--hidden", "64", "--layers", "12"});
  EXPECT_EQ(wrong.finish(), 1);
  expect_contains(wrong.error(), {"'pipeline_num_layers' is 24", "12 layers"});
}

std::vector<double> numbers_in(const std::string& path) {
  std::ifstream file(path);
  std::vector<double> numbers;
  for (double number = 0; file >> number;) numbers.push_back(number);
  return numbers;
}

/// Data 2 x tensor 2 x pipeline 2, against LibTorch alone; what is merged one process samples from.
TEST(PipelineTutorials, Gpt2InThreeDimensionsTrainsAsAloneAndMerges) {
  const TemporaryDirectory folder;
  const Words common{"--layers",  "2", "--hidden", "32", "--heads",      "4",
                     "--seq-len", "8", "--steps",  "3",  "--batch-size", "8"};
  const auto with = [&](Words words, const Words& more) {
    words.insert(words.end(), common.begin(), common.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  ToolProcess cube(with({"run", "-n", "8", "--", TUTORIALS "/train_gpt2"},
                        {"--set", "model_parallelism.tensor_parallel_size=2", "--set",
                         "model_parallelism.pipeline_parallel_size=2", "--micro-batches", "2",
                         "--out", folder / "run", "--losses", folder / "losses"}));
  ASSERT_EQ(cube.finish(), 0) << cube.error();
  ToolProcess plain(with({"run", "-n", "1", "--", TUTORIALS "/train_plain_gpt2"},
                         {"--losses", folder / "plain"}));
  ASSERT_EQ(plain.finish(), 0) << plain.error();
  const auto losses = numbers_in(folder / "losses"), expected = numbers_in(folder / "plain");
  ASSERT_EQ(losses.size(), 3u);
  ASSERT_EQ(expected.size(), 3u);
  // Sums of floats in another order, of losses near 11.
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-4);
  EXPECT_LT(losses.back(), losses.front());
  for (const char* file : {"run/parallel_ckpt/pytorch_model_tp_1_pp_1.safetensors",
                           "run/parallel_ckpt/parallel_config.json",
                           "run/merged_ckpt/model.safetensors", "run/merged_ckpt/config.json"}) {
    EXPECT_FALSE(contents(folder / file).empty()) << file;
  }
  ToolProcess text({"run", "-n", "1", "--", TUTORIALS "/generate_gpt2", "--checkpoint",
                    folder / "run/merged_ckpt", "--prompt", "ROMEO:"});
  EXPECT_EQ(text.finish(), 0) << text.error();
  EXPECT_THAT(text.output(), HasSubstr("ROMEO:"));

  // Merged over other ranks than those that saved, and by the command: the same file.
  ToolProcess merge({"run", "-n", "3", "--", TUTORIALS "/merge_gpt2", "--checkpoint",
                     folder / "run/parallel_ckpt", "--out", folder / "by_ranks"});
  EXPECT_EQ(merge.finish(), 0) << merge.error();
  ToolProcess command({"merge", folder / "run/parallel_ckpt", folder / "by_command"});
  EXPECT_EQ(command.finish(), 0) << command.error();
  EXPECT_FALSE(contents(folder / "by_ranks/model.safetensors").empty());
  EXPECT_EQ(contents(folder / "by_ranks/model.safetensors"),
            contents(folder / "by_command/model.safetensors"));
}

/// The README's run in bf16 within a budget: what is refused tells what is enough, and the losses
/// are those of the run that keeps everything.
TEST(Gpt2Tutorial, InBf16WithinABudgetOfMemoryLearnsTheSame) {
  const TemporaryDirectory folder;
  const auto run = [&](const std::string& losses, const std::string& budget) {
    Words words{"run",
                "-n",
                "2",
                "--",
                TUTORIALS "/train_gpt2",
                "--layers",
                "4",
                "--hidden",
                "24",
                "--heads",
                "3",
                "--seq-len",
                "23",
                "--steps",
                "3",
                "--batch-size",
                "6",
                "--out",
                folder / "run",
                "--losses",
                folder / losses,
                "--set",
                "amp.enabled=true",
                "--set",
                "master_weights=true"};
    if (!budget.empty()) {
      words.insert(words.end(), {"--set", "activation_checkpoint.memory=" + budget});
    }
    ToolProcess train(words);
    const int code = train.finish();
    return std::pair(code, train.error());
  };
  const auto [kept, trouble] = run("kept", "");
  ASSERT_EQ(kept, 0) << trouble;
  // The first number is of weights, gradients and states; the first step knows the activations.
  std::string budget = "1000000";
  int refusals = 0;
  for (; refusals < 3; ++refusals) {
    const auto [code, error] = run("within", budget);
    if (code == 0) break;
    const std::string before = "the least is ";
    const size_t at = error.find(before);
    ASSERT_NE(at, std::string::npos) << error;
    budget = std::to_string(std::stoll(error.substr(at + before.size())));
  }
  EXPECT_EQ(refusals, 2);
  const auto losses = numbers_in(folder / "within"), expected = numbers_in(folder / "kept");
  ASSERT_EQ(expected.size(), 3u);
  EXPECT_EQ(losses, expected);
}

}  // namespace
}  // namespace oslo::test
