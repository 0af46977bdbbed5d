// The other models of the zoo, evaluations, resumed runs, libraries of one's own.
#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "tests/support/error_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/train_net_process_test/by_hand.h"
#include "tests/train_net_process_test/run_train.h"

namespace oslo::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Zoo {
  std::string config, model, layers;  ///< `layers`: how many a pipeline divides
  nlohmann::json cfg, train, test;
};

class ZooModels : public ::testing::TestWithParam<Zoo> {};

/// Data 1 x tensor 2 x pipeline 2, with an evaluation of rows that divide by nothing. By SGD: Adam
/// makes steps of the roundings in gradients that are zero, as those of T5's positions are.
TEST_P(ZooModels, TrainAndEvaluateAsPlainLibTorch) {
  const TemporaryDirectory folder;
  const Zoo& zoo = GetParam();
  train({kConfigs + zoo.config, "4", "model.cfg=" + zoo.cfg.dump(),
         "dataloader.train=" + zoo.train.dump(), "dataloader.test=" + zoo.test.dump(),
         "train.global_batch_size=6", "train.train_micro_batch_size=3", "train.train_iter=3",
         "train.log_period=1", "train.warmup_ratio=0", "optim.name=SGD", "optim.lr=0.2",
         "optim.momentum=0.9", "optim.weight_decay=0.01", "train.dist.tensor_parallel_size=2",
         "train.dist.pipeline_parallel_size=2", "train.dist.pipeline_num_layers=" + zoo.layers,
         "train.output_dir=" + folder.path().string()});
  ByHand how;
  how.model = zoo.model;
  how.cfg = zoo.cfg;
  how.train = zoo.train;
  how.test = zoo.test;
  how.rows = 6;
  how.sgd = true;
  how.lr = 0.2;
  const Trained expected = train_by_hand(how);
  EXPECT_GT(std::abs(expected.losses[0] - expected.losses[2]), 50 * kRounding);  // it learned
  expect_losses(metrics_of(folder.path(), "total_loss"), expected.losses);
  expect_losses(metrics_of(folder.path(), "eval_loss"), {expected.test_loss});
  EXPECT_THAT(contents(folder / "loss.svg"), HasSubstr("<svg"));
}

const nlohmann::json kTokens = {{"dataset", "synthetic"}, {"samples", 20}, {"seq_length", 7}};
const nlohmann::json kTestTokens = {{"dataset", "synthetic"}, {"samples", 13}, {"seq_length", 7}};

INSTANTIATE_TEST_SUITE_P(Of, ZooModels,
                         ::testing::Values(Zoo{"gpt2_pretrain.json",
                                               "gpt2",
                                               "model.cfg.hidden_layers",
                                               {{"vocab_size", 31},
                                                {"hidden_size", 12},
                                                {"hidden_layers", 2},
                                                {"num_attention_heads", 2},
                                                {"max_seq_length", 9},
                                                {"embd_pdrop", 0.0},
                                                {"attn_pdrop", 0.0},
                                                {"resid_pdrop", 0.0}},
                                               kTokens,
                                               kTestTokens},
                                           Zoo{"llama_pretrain.json",
                                               "llama",
                                               "model.cfg.hidden_layers",
                                               {{"vocab_size", 31},
                                                {"hidden_size", 12},
                                                {"hidden_layers", 3},
                                                {"intermediate_size", 20},
                                                {"num_attention_heads", 4},
                                                {"num_key_value_heads", 2},
                                                {"head_dim", 6},
                                                {"max_position_embeddings", 9}},
                                               kTokens,
                                               kTestTokens},
                                           Zoo{"t5_pretrain.json",
                                               "t5",
                                               "2 * model.cfg.hidden_layers",
                                               {{"vocab_size", 31},
                                                {"hidden_size", 12},
                                                {"hidden_layers", 2},
                                                {"num_decoder_layers", 2},
                                                {"num_attention_heads", 2},
                                                {"head_size", 6},
                                                {"intermediate_size", 20},
                                                {"dropout_rate", 0.0}},
                                               kTokens,
                                               kTestTokens},
                                           Zoo{"vit_imagenet.json",
                                               "vit",
                                               "model.cfg.depth",
                                               {{"img_size", 8},
                                                {"patch_size", 4},
                                                {"in_chans", 3},
                                                {"embed_dim", 12},
                                                {"depth", 3},
                                                {"num_heads", 2},
                                                {"intermediate_size", 20},
                                                {"num_classes", 5}},
                                               {{"dataset", "synthetic"}, {"samples", 20}},
                                               {{"dataset", "synthetic"}, {"samples", 13}}}),
                         [](const auto& info) { return info.param.model; });

/// Stopped after 2 of 4 iterations at data 2, and resumed at tensor 2: the losses of a run that was
/// not interrupted. The resolved config of a run is a config.
TEST(TrainResume, GoesOnInAnotherLayout) {
  const TemporaryDirectory folder;
  const Zoo zoo{"",
                "gpt2",
                "",
                {{"vocab_size", 31},
                 {"hidden_size", 12},
                 {"hidden_layers", 2},
                 {"num_attention_heads", 2},
                 {"max_seq_length", 9},
                 {"embd_pdrop", 0.0},
                 {"attn_pdrop", 0.0},
                 {"resid_pdrop", 0.0}},
                kTokens,
                {}};
  const std::string out = (folder / "out").string();
  const Words common = {
      "model.cfg=" + zoo.cfg.dump(), "dataloader={\"train\": " + kTokens.dump() + "}",
      "train.global_batch_size=6",   "train.train_micro_batch_size=null",
      "train.log_period=1",          "train.scheduler=null",
      "train.warmup_ratio=0",        "optim.lr=0.01",
      "train.output_dir=" + out};
  train(Words{kConfigs + "gpt2_pretrain.json", "2", "train.train_iter=2"} + common);
  ToolProcess again(Words{"train", "-n", "2", kConfigs + "gpt2_pretrain.json"} + common);
  EXPECT_EQ(again.finish(), 2);
  expect_contains(again.error(), {"checkpoints of another run", "--resume"});
  const std::string resumed =
      train({"-n", "2", "--resume", out + "/config.json", "train.train_iter=4",
             "train.dist.tensor_parallel_size=2", "train.dist.data_parallel_size=1"});
  EXPECT_THAT(resumed, HasSubstr("iterations 2 to 4"));
  ByHand how;
  how.model = "gpt2";
  how.cfg = zoo.cfg;
  how.train = kTokens;
  how.rows = 6;
  how.iterations = 4;
  how.cosine = false;
  expect_losses(metrics_of(out, "total_loss"), train_by_hand(how).losses);
}

TEST(TrainLibrary, OfOnesOwnIsTrainedAlsoBelowALauncher) {
  const TemporaryDirectory folder;
  write_contents(folder / "net.json",
                 R"({"model": {"name": "net", "cfg": {"width": 10}},
                     "dataloader": {"train": {"samples": 40}},
                     "train": {"global_batch_size": 10, "train_iter": 30, "log_period": 1},
                     "optim": {"lr": 0.05}})");
  const std::string config = (folder / "net.json").string();
  const auto out = [&](const std::string& name) {
    return "train.output_dir=" + (folder / name).string();
  };
  train({config, "--model-library", TRAINED_LIBRARY, out("one")});
  const std::vector<double> losses = metrics_of(folder / "one", "total_loss");
  ASSERT_EQ(losses.size(), 30u);
  EXPECT_LT(losses.back(), 0.8 * losses.front());
  ToolProcess below({"run", "-n", "2", "--", OSLO_TOOL, "train", config,
                     "model.library=" TRAINED_LIBRARY, "train.dist.tensor_parallel_size=2",
                     out("two")});
  ASSERT_EQ(below.finish(), 0) << below.error();
  expect_losses(metrics_of(folder / "two", "total_loss"), losses);
}

/// Half precision and recomputation beside each other learn as float does. The first steps may be
/// left out: their scale is found by trying.
TEST(TrainPrecision, Float16WithRecomputationLearnsAsFloat) {
  const TemporaryDirectory folder;
  const nlohmann::json cfg = {
      {"vocab_size", 31},    {"hidden_size", 12}, {"hidden_layers", 2}, {"num_attention_heads", 2},
      {"max_seq_length", 9}, {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0},  {"resid_pdrop", 0.0}};
  train({kConfigs + "gpt2_pretrain.json", "4", "model.cfg=" + cfg.dump(),
         "dataloader={\"train\": " + kTokens.dump() + "}", "train.global_batch_size=6",
         "train.train_micro_batch_size=null", "train.train_iter=14", "train.log_period=1",
         "train.scheduler=null", "train.warmup_ratio=0", "optim.lr=0.01", "train.amp.enabled=true",
         "train.amp.dtype=float16", "train.activation_checkpoint.enabled=true",
         "train.dist.tensor_parallel_size=2", "train.output_dir=" + folder.path().string()});
  ByHand how;
  how.model = "gpt2";
  how.cfg = cfg;
  how.train = kTokens;
  how.rows = 6;
  how.iterations = 14;
  how.cosine = false;
  const std::vector<double> losses = metrics_of(folder.path(), "total_loss"),
                            expected = train_by_hand(how).losses;
  ASSERT_EQ(losses.size(), expected.size());
  EXPECT_NEAR(losses[0], expected[0], 0.01);
  const double learned = expected.front() - expected.back();
  EXPECT_GT(learned, 0.2);
  EXPECT_LT(losses.back(), losses.front() - 0.5 * learned);
}

/// Weights of a run are those that another one begins with, in another layout.
TEST(TrainWeights, AreLoadedAndEvaluated) {
  const TemporaryDirectory folder;
  const Words words = {kConfigs + "vit_imagenet.json",
                       "2",
                       R"(model.cfg={"img_size": 8, "patch_size": 4, "in_chans": 3,
                           "embed_dim": 12, "depth": 2, "num_heads": 2, "intermediate_size": 20,
                           "num_classes": 5})",
                       "dataloader.train.samples=20",
                       "dataloader.test.samples=11",
                       "train.global_batch_size=4",
                       "train.train_micro_batch_size=null",
                       "train.train_iter=3",
                       "optim.lr=0.01"};
  train(words + Words{"train.output_dir=" + (folder / "run").string()});
  const std::vector<double> losses = metrics_of(folder / "run", "eval_loss");
  ASSERT_EQ(losses.size(), 1u);
  const std::string output = train(
      words + Words{"--eval-only", "train.load_weight=" + (folder / "run" / "checkpoints").string(),
                    "train.dist.tensor_parallel_size=2", "train.seed=7"});
  const size_t at = output.find("loss ");
  ASSERT_NE(at, std::string::npos) << output;
  const double loss = std::stod(output.substr(at + 5));
  // Another seed has other pictures: near, and not the same.
  EXPECT_NE(loss, losses[0]);
  const std::string same = train(
      words + Words{"--eval-only", "train.load_weight=" + (folder / "run" / "checkpoints").string(),
                    "train.dist.tensor_parallel_size=2"});
  EXPECT_NEAR(std::stod(same.substr(same.find("loss ") + 5)), losses[0], 1e-4);
}

TEST(TrainPlan, IsThatOfTheConfigWithoutRanks) {
  ToolProcess plan({"plan", "-n", "8", "--", OSLO_TOOL, "train", kConfigs + "vit_imagenet.json",
                    "model.cfg.embed_dim=24", "model.cfg.intermediate_size=40",
                    "train.dist.tensor_parallel_size=2", "train.dist.pipeline_parallel_size=2"});
  ASSERT_EQ(plan.finish(), 0) << plan.error();
  EXPECT_THAT(plan.output(), HasSubstr("8 ranks: pipeline 2 x data 2 x tensor 2"));
}

/// Once, in front of any rank; and with the exit code of misuse.
TEST(TrainMistakes, AreToldOnce) {
  const auto error_of_words = [](Words words, int exit_code) {
    words.insert(words.begin(), "train");
    ToolProcess process(words);
    EXPECT_EQ(process.finish(), exit_code) << process.error();
    return process.error();
  };
  const std::string bert = kConfigs + "bert_large_pretrain.json";
  const std::string unknown = error_of_words({bert, "8", "train.dist.tensor_paralel_size=2"}, 2);
  expect_contains(unknown, {"oslo train: override", "'tensor_parallel_size'"});
  EXPECT_THAT(unknown, Not(HasSubstr("[rank")));
  expect_contains(error_of_words({bert, "8", "train.dist.tensor_parallel_size=3"}, 2),
                  {"which does not divide the world size 8"});
  expect_contains(error_of_words({bert, "8", "train.dist.data_parallel_size=1"}, 2),
                  {"the world size is 8", "data 8 x tensor 1"});
  expect_contains(error_of_words({bert, "4", "-n", "8"}, 2), {"keep one of the two"});
  expect_contains(error_of_words({bert, "8", "+"}, 2), {"'+' is no override", "quotes"});
  expect_contains(error_of_words({"none.json", "8"}, 2), {"cannot be opened"});
  expect_contains(error_of_words({bert, "model.name=bart"}, 2), {"nearest name is 'bert'"});
  expect_contains(error_of_words({bert, "model.cfg.hiden_layers=2"}, 2),
                  {"'model.cfg.hiden_layers'", "'hidden_layers'"});
  expect_contains(error_of_words({bert, "model.cfg.num_hidden_layers=2"}, 2),
                  {"two names of one size"});
  expect_contains(error_of_words({bert, "model.library=none.so"}, 1), {"no model library none.so"});
  expect_contains(error_of_words({bert, "--model-library", OSLO_LIBRARY}, 2),
                  {"OSLO_TRAINED_MODELS"});
  expect_contains(error_of_words({bert, "--resume", "train.output_dir=/nowhere"}, 2),
                  {"--resume: there are no checkpoints in"});
  expect_contains(error_of_words({bert, "--eval-only"}, 2), {"of which weights"});
  EXPECT_THAT(error_of_words({}, 2), HasSubstr("CONFIG"));
}

}  // namespace
}  // namespace oslo::test
