// Models of Python's transformers, exported by torch.export when the test runs, trained as in
// Python: on one rank, tensor 2, data 2 and two stages of a pipeline.
#include <gmock/gmock.h>

#include "tests/exported_transformers_test/exported_families.h"

namespace oslo::test {
namespace {

using testing::ElementsAre;

/// What a step at tensor 2 communicates.
struct Communicated {
  int64_t sums;         ///< all-reduces
  int64_t gathers = 0;  ///< of values that lie elsewhere than an operator needs them
};

void expect_trains(const std::string& family, const Training& training, const Communicated& step) {
  const auto expect_communicated = [&](const ParallelModel& parallel) {
    const Plan plan = parallel.plan();
    int64_t gathers = 0;
    for (const GatherEntry& each : plan.gathers) gathers += each.calls;
    EXPECT_EQ(gathers, step.gathers) << plan.to_string();
    EXPECT_EQ(calls_of(parallel, "all_reduce"), step.sums) << plan.to_string();
  };
  const PythonRun dropped = run_of(family, family + "_dropout");
  Training with_dropout = training;
  with_dropout.prepare = {};
  with_dropout.draws = 5;  // as export_models.py
  with_dropout.after = expect_silent;
  expect_python(dropped, {1, 1}, with_dropout);
  with_dropout.after = expect_communicated;
  expect_python(dropped, {1, 2}, with_dropout);
  // Micro-batches would draw otherwise than the batch that Python had.
  expect_pipeline(dropped, 1, with_dropout);

  Training cut = training;
  cut.after = expect_communicated;
  const PythonRun run = run_of(family);
  expect_python(run, {1, 2}, cut);
  expect_python(run, {2, 1}, training);
  expect_pipeline(run, 3, training);

  // The program whose sequences may be of any length, on sequences of five lengths.
  const PythonRun lengths = run_of(family + "_length");
  expect_python(lengths, {1, 1}, training);
  expect_python(lengths, {1, 2}, training);
  expect_pipeline(lengths, 2, training);
}

TEST(ExportedTransformers, Gpt2TrainsAsInPython) {
  OSLO_NEEDS_TRANSFORMERS();
  // Four a block, embedding, head, and two of the loss.
  expect_trains("gpt2", without_dropout(), {12});
}

/// As transformers are usually trained: the loss is the first of the model's results.
TEST(ExportedTransformers, Gpt2WithItsOwnLossTrainsAsInPython) {
  OSLO_NEEDS_TRANSFORMERS();
  expect_trains("gpt2_labels", with_its_own_loss(), {12});
  EXPECT_THAT(run_of("gpt2_labels").load()->output_names(), ElementsAre("loss", "logits"));
}

TEST(ExportedTransformers, BertTrainsAsInPython) {
  OSLO_NEEDS_TRANSFORMERS();
  // The head's transform is cut, too: its layer norm takes four, and its result is gathered once.
  expect_trains("bert", without_dropout(), {16, 1});
}

TEST(ExportedTransformers, LlamaTrainsAsInPython) {
  OSLO_NEEDS_TRANSFORMERS();
  expect_trains("llama", with_parts_in_float(), {12});
}

TEST(ExportedTransformers, T5TrainsAsInPython) {
  OSLO_NEEDS_TRANSFORMERS();
  // Four a block of the encoder, six a block of the decoder, the gradient of the encoder's output,
  // two look-ups, head, and two of the loss.
  expect_trains("t5", with_parts_in_float(), {26});
}

/// Experts: indices of tensors choose what multiplies what.
TEST(ExportedTransformers, MixtralTrainsAsInPython) {
  OSLO_NEEDS_TRANSFORMERS();
  expect_trains("mixtral", with_parts_in_float(), {12});
}

/// Masks of truth values beside dropout, as these families have them by default.
TEST(ExportedTransformers, MaskedAttentionDropsAsInPython) {
  OSLO_NEEDS_TRANSFORMERS();
  for (const char* family : {"roberta", "electra", "esm", "distilbert", "gpt_bigcode"}) {
    SCOPED_TRACE(family);
    const PythonRun run = run_of(family, std::string(family) + "_dropout");
    Training training = with_parts_in_float();
    training.prepare = {};
    training.draws = 5;  // as export_models.py
    expect_python(run, {1, 2}, training);
    expect_pipeline(run, 1, training);
  }
}

TEST(ExportedTransformers, InputsAndResultsHaveTheNamesOfPython) {
  OSLO_NEEDS_TRANSFORMERS();
  const auto model = run_of("t5").load();
  EXPECT_THAT(model->input_names(),
              ElementsAre("input_ids", "attention_mask", "decoder_input_ids"));
  EXPECT_THAT(model->output_names(), ElementsAre("logits", "encoder_last_hidden_state"));
}

}  // namespace
}  // namespace oslo::test
