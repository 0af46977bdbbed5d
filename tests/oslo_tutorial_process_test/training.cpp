// OSLO's two tutorials as a user runs them, beside plain LibTorch and Python's transformers.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include <cstdlib>
#include <fstream>

#include "checkpoint/formats/safetensors.h"
#include "tests/oslo_tutorial_process_test/plain_run.h"
#include "tests/support/error_of.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tool_process.h"
#include "tests/support/transformers.h"

namespace gpt2 {
namespace {

using oslo::test::TemporaryDirectory;
using oslo::test::ToolProcess;
using oslo::test::Words;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Of unequal lengths; one is longer than SEQ_LEN, and one has nothing to predict.
const Sentences kSentences{"First Citizen: before we proceed any further, hear me speak.",
                           "Speak, speak.",
                           "You are all resolved rather to die than to famish?",
                           "I",
                           "Resolved. resolved.",
                           "First, you know Caius Marcius is chief enemy to the people.",
                           "We know't, we know't.",
                           "Let us kill him",
                           "No more talking on't; let it be done: away, away!"};

PlainRun small_run() {
  PlainRun run;
  run.config.vocab_size = 50257;
  run.config.n_positions = 8;
  run.config.n_embd = 12;
  run.config.n_layer = 2;
  run.config.n_head = 3;
  run.config.embd_pdrop = run.config.attn_pdrop = run.config.resid_pdrop = 0.0;
  run.sentences = kSentences;
  return run;
}

std::string write_lines(const std::string& path, const Sentences& lines) {
  std::ofstream file(path);
  for (const std::string& line : lines) file << line << "\n";
  return path;
}

Words command(int ranks, const std::string& program, const Words& more) {
  Words words{"run", "-n", std::to_string(ranks), "--", TUTORIALS "/" + program};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words training(const std::string& folder, const Words& more) {
  Words words{
      "--layers",     "2", "--hidden", "12",   "--heads", "3",    "--seq-len", "8",
      "--batch-size", "2", "--lr",     "1e-3", "--out",   folder, "--losses",  folder + "/losses"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void expect_losses(const std::string& path, const std::vector<double>& expected) {
  std::ifstream file(path);
  std::vector<double> losses;
  for (double number = 0; file >> number;) losses.push_back(number);
  ASSERT_EQ(losses.size(), expected.size());
  // Sums of floats in another order, of losses near 11.
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 2e-5) << i;
}

/// 2 x 2 ranks, over more than one epoch; its checkpoint, merged over three ranks, Python opens.
TEST(OsloTutorial, TensorAndDataParallelTrainsAsPlainLibTorchAndMergesForPython) {
  const TemporaryDirectory folder;
  const PlainRun run = small_run();
  const std::string text = write_lines(folder / "sentences", kSentences);
  ::setenv("OSLO_VERBOSE", "1", /*overwrite=*/1);
  ToolProcess four(
      command(4, "tensor_data_parallel_gpt2",
              training(folder / "out", {"--tensor-parallel-size", "2", "--text", text,
                                        "--train-step", "5", "--save-interval", "3"})));
  ::unsetenv("OSLO_VERBOSE");
  ASSERT_EQ(four.finish(), 0) << four.error();
  EXPECT_THAT(four.error(), HasSubstr("oslo: saving  [########################] 100 %"));
  EXPECT_THAT(four.output(), HasSubstr("rank 2: data 1 of 2, tensor 0 of 2, pipeline 0 of 1"));
  GPT2WithLabels plain = made(run.config, 0);
  expect_losses(folder / "out/losses", train_plain(run, plain, 2, 5));

  ToolProcess merge({"run", "-n", "3", "--", "env", "OSLO_VERBOSE=1", TUTORIALS "/merge_gpt2",
                     "--checkpoint", folder / "out/parallel_ckpt", "--out",
                     folder / "merged_ckpt"});
  ASSERT_EQ(merge.finish(), 0) << merge.error();
  EXPECT_THAT(merge.error(), HasSubstr("oslo: merging  [########################] 100 %"));
  GPT2WithLabels merged = made(run.config, 1);
  oslo::load_pretrained(merged, folder / "merged_ckpt");
  // Adam divides by what small gradients are: a rounding of these is seen. Five steps move by 5e-3.
  for (const auto& item : merged->transformer->named_parameters()) {
    const torch::Tensor expected = plain->transformer->named_parameters()[item.key()];
    EXPECT_TRUE(torch::allclose(item.value(), expected, 1e-4, 1e-4)) << item.key();
  }
  EXPECT_TRUE(merged->lm_head->weight.is_same(merged->transformer->wte->weight));

  OSLO_NEEDS_TRANSFORMERS();
  for (const char* file : {"pytorch_model.bin", "model.safetensors", "config.json"}) {
    EXPECT_FALSE(oslo::test::contents(folder / "merged_ckpt" / file).empty()) << file;
  }
  const auto quoted = [](const std::filesystem::path& path) { return "'" + path.string() + "' "; };
  oslo::test::run_with_transformers("tests/oslo_tutorial_process_test/open_merged.py",
                                    quoted(folder / "merged_ckpt") + quoted(text) +
                                        quoted(OSLO_TUTORIAL_DATA "/gpt2-bpe") + "8 " +
                                        quoted(folder / "python"));
  const oslo::StateDict python = oslo::read_safetensors(folder / "python");
  BpeTokenizer tokenizer(OSLO_TUTORIAL_DATA "/gpt2-bpe");
  const TokenBatch batch = tokenize(tokenizer, kSentences, 8);
  EXPECT_TRUE(torch::equal(batch.input_ids, python.at("input_ids")));
  EXPECT_TRUE(torch::equal(batch.attention_mask, python.at("attention_mask")));
  EXPECT_TRUE(torch::equal(batch.labels, python.at("labels")));
  const torch::NoGradGuard no_grad;
  EXPECT_NEAR(merged->forward(batch).loss.item<float>(), python.at("loss").item<float>(), 1e-4);
}

/// From a folder of pretrained weights; two ranks that do not divide three heads.
TEST(OsloTutorial, TensorParallelGeneratesAndTrainsAsPlainLibTorch) {
  const TemporaryDirectory folder;
  PlainRun run = small_run();
  GPT2WithLabels pretrained = made(run.config, 7);
  oslo::save_pretrained(pretrained, folder / "pretrained",
                        oslo::PretrainedOptions().config(run.config.to_json()));
  Sentences rows;
  for (const std::string& sentence : kSentences) {
    rows.push_back(nlohmann::json{{"id", rows.size()}, {"context", sentence}}.dump());
  }
  const std::string jsonl = write_lines(folder / "squad.jsonl", rows);
  ToolProcess two(command(2, "tensor_parallel_gpt2",
                          training(folder / "out", {"--model", folder / "pretrained", "--jsonl",
                                                    jsonl, "--field", "context", "--train-step",
                                                    "4", "--prompt", "Speak", "--tokens", "6"})));
  ASSERT_EQ(two.finish(), 0) << two.error();
  ToolProcess text(command(1, "generate_gpt2",
                           {"--checkpoint", folder / "pretrained", "--prompt", "Speak", "--tokens",
                            "6", "--temperature", "0"}));
  ASSERT_EQ(text.finish(), 0) << text.error();
  EXPECT_THAT(text.output(), HasSubstr("Speak"));
  EXPECT_THAT(two.output(), StartsWith(text.output()));
  run.sentences.resize(8);  // TRAIN_STEP * BATCH_SIZE
  expect_losses(folder / "out/losses", train_plain(run, pretrained, 1, 4));
}

TEST(OsloTutorial, SaysWhatItCannotRead) {
  const TemporaryDirectory folder;
  const std::string jsonl = write_lines(folder / "rows", {R"({"context": "a"})", R"({"text": 1})"});
  ToolProcess field(command(1, "tensor_data_parallel_gpt2", {"--jsonl", jsonl}));
  EXPECT_EQ(field.finish(), 1);
  oslo::test::expect_contains(field.error(), {"rows:2", "'context'", "--field"});
  ToolProcess both(command(1, "tensor_parallel_gpt2", {"--jsonl", jsonl, "--text", jsonl}));
  EXPECT_EQ(both.finish(), 108);  // CLI11's code of options that exclude each other
  EXPECT_THAT(both.error(), HasSubstr("excludes"));
}

}  // namespace
}  // namespace gpt2
