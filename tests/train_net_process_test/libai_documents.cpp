// Each example of LiBai's "Distributed Configuration", with the words of its command line, on 8
// ranks: BERT trains as plain LibTorch does by hand on one device.
#include <gmock/gmock.h>

#include <string>

#include "tests/support/temporary_directory.h"
#include "tests/train_net_process_test/by_hand.h"
#include "tests/train_net_process_test/run_train.h"

namespace oslo::test {
namespace {

using ::testing::HasSubstr;

struct Example {
  std::string name;
  Words overrides;
  std::string grid;  ///< as the command prints it
  int64_t layers = 8;
};

/// bert_large_pretrain.json, small and without dropout, so that data ranks draw nothing.
const Words kSmall = {
    "model.cfg.vocab_size=61",
    "model.cfg.hidden_size=16",
    "model.cfg.num_attention_heads=8",
    "model.cfg.intermediate_size=24",
    "model.cfg.max_position_embeddings=12",
    "model.cfg.hidden_dropout_prob=0",
    "model.cfg.attention_probs_dropout_prob=0",
    R"(dataloader={"train": {"dataset": "synthetic", "samples": 43, "seq_length": 9}})",
    "train.global_batch_size=16",
    "train.train_micro_batch_size=null",
    "train.num_accumulation_steps=2",
    "train.train_iter=3",
    "train.warmup_ratio=0.3",
    "train.log_period=1",
    "optim.lr=0.01"};

Trained expected_of(int64_t layers) {
  ByHand how;
  how.model = "bert";
  how.cfg = {{"vocab_size", 61},
             {"hidden_size", 16},
             {"num_attention_heads", 8},
             {"intermediate_size", 24},
             {"max_position_embeddings", 12},
             {"hidden_dropout_prob", 0.0},
             {"attention_probs_dropout_prob", 0.0},
             {"num_hidden_layers", layers}};
  how.train = {{"dataset", "synthetic"}, {"samples", 43}, {"seq_length", 9}};
  how.rows = 16;
  how.warmup = 1;
  return train_by_hand(how);
}

class LiBaisDocuments : public ::testing::TestWithParam<Example> {};

TEST_P(LiBaisDocuments, TrainAsPlainLibTorch) {
  const TemporaryDirectory folder;
  const Example& example = GetParam();
  // bash tools/train.sh tools/train_net.py configs/bert_large_pretrain.py 8 ...
  const std::string output =
      train(Words{kConfigs + "bert_large_pretrain.json", "8"} + kSmall +
            Words{"model.cfg.hidden_layers=" + std::to_string(example.layers),
                  "train.output_dir=" + folder.path().string()} +
            example.overrides);
  EXPECT_THAT(output, HasSubstr("training bert on 8 ranks: " + example.grid));
  const Trained expected = expected_of(example.layers);
  expect_losses(metrics_of(folder.path(), "total_loss"), expected.losses);
  EXPECT_GT(std::abs(expected.losses[0] - expected.losses[2]), 100 * kRounding);  // it learned
}

const std::string kDist = "train.dist.";

INSTANTIATE_TEST_SUITE_P(
    Of, LiBaisDocuments,
    ::testing::Values(
        Example{"NothingChanged", {}, "data 8 x tensor 1 x pipeline 1"},
        Example{"PureData", {kDist + "data_parallel_size=8"}, "data 8 x tensor 1 x pipeline 1"},
        Example{"PureTensor", {kDist + "tensor_parallel_size=8"}, "data 1 x tensor 8 x pipeline 1"},
        Example{"PurePipeline",
                {kDist + "pipeline_parallel_size=8",
                 kDist + "pipeline_num_layers=model.cfg.hidden_layers"},
                "data 1 x tensor 1 x pipeline 8"},
        Example{"DataTensor",
                {kDist + "data_parallel_size=2", kDist + "tensor_parallel_size=4"},
                "data 2 x tensor 4 x pipeline 1"},
        Example{"DataPipeline",
                {kDist + "data_parallel_size=2", kDist + "pipeline_parallel_size=4"},
                "data 2 x tensor 1 x pipeline 4"},
        Example{"TensorPipeline",
                {kDist + "tensor_parallel_size=2", kDist + "pipeline_parallel_size=4"},
                "data 1 x tensor 2 x pipeline 4"},
        Example{"DataTensorPipeline",
                {kDist + "data_parallel_size=2", kDist + "tensor_parallel_size=2",
                 kDist + "pipeline_parallel_size=2"},
                "data 2 x tensor 2 x pipeline 2"},
        Example{"DataIsCalculated",
                {kDist + "tensor_parallel_size=2", kDist + "pipeline_parallel_size=2"},
                "data 2 x tensor 2 x pipeline 2"},
        Example{"Zero", {"train.zero_optimization.enabled=true"}, "data 8 x tensor 1 x pipeline 1"},
        Example{"ZeroDataTensorPipeline",
                {kDist + "tensor_parallel_size=2", kDist + "pipeline_parallel_size=2",
                 "train.zero_optimization.enabled=true", "train.zero_optimization.stage=1"},
                "data 2 x tensor 2 x pipeline 2"},
        Example{"CustomStages",
                {kDist + "pipeline_parallel_size=4", kDist + "pipeline_num_layers=24",
                 kDist + "custom_pipeline_stage_id=[0]*6 + [1]*7 + [2]*7 + [3]*4"},
                "data 2 x tensor 1 x pipeline 4",
                24}),
    [](const auto& info) { return info.param.name; });

/// The same block in a file, from which nothing is taken back.
TEST(LiBaisDefaultBlock, InAFileIsDataParallel) {
  const TemporaryDirectory folder;
  write_contents(folder / "bert.json", R"({"base": [")" + kConfigs + R"(bert_large_pretrain.json"],
      "train": {"dist": {"data_parallel_size": 1, "tensor_parallel_size": 1,
          "pipeline_parallel_size": 1, "pipeline_num_layers": null,
          "custom_pipeline_stage_id": null}}})");
  const std::string output =
      train(Words{(folder / "bert.json").string(), "8"} + kSmall +
            Words{"model.cfg.hidden_layers=2", "train.output_dir=" + (folder / "out").string()});
  EXPECT_THAT(output, HasSubstr("on 8 ranks: data 8 x tensor 1 x pipeline 1"));
  expect_losses(metrics_of(folder / "out", "total_loss"), expected_of(2).losses);
}

}  // namespace
}  // namespace oslo::test
