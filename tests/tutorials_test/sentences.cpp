#include "tutorials/gpt2/sentences.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <fstream>

#include "tests/support/temporary_directory.h"
#include "tutorials/gpt2/gpt2_with_labels.h"
#include "tutorials/gpt2/token_batch.h"

namespace gpt2 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SentencesOf : public ::testing::Test {
 protected:
  std::string file(const std::string& text) {
    const std::string path = folder_ / "file";
    std::ofstream(path) << text;
    return path;
  }
  template <typename Read>
  static std::string refusal(const Read& read) {
    try {
      read();
      return "accepted";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  }

 private:
  oslo::test::TemporaryDirectory folder_;
};

TEST_F(SentencesOf, ATextAreItsLines) {
  EXPECT_THAT(text_sentences(file("one\r\n\ntwo \nthree")), ElementsAre("one", "two ", "three"));
  EXPECT_THAT(refusal([&] { text_sentences(file("\n\n")); }), HasSubstr("no sentence in"));
  EXPECT_THAT(refusal([&] { text_sentences("/nowhere/text"); }), HasSubstr("/nowhere/text"));
}

TEST_F(SentencesOf, JsonLinesAreOneEntryOfEach) {
  const std::string rows = "{\"context\": \"a \\u00e9\", \"id\": 1}\n{\"context\": \"b\"}\n";
  EXPECT_THAT(json_lines_sentences(file(rows), "context"), ElementsAre("a \u00e9", "b"));
  EXPECT_THAT(refusal([&] { json_lines_sentences(file(rows), "id"); }), HasSubstr(":1 is no"));
  EXPECT_THAT(refusal([&] { json_lines_sentences(file(rows + "{\"cont"), "context"); }),
              HasSubstr(":3 is no"));
}

TEST_F(SentencesOf, SquadAreItsContextsOnceAQuestion) {
  const std::string squad = R"({"version": "1.1", "data": [
      {"title": "x", "paragraphs": [{"context": "first", "qas": [{"id": "1"}, {"id": "2"}]},
                                    {"context": "unasked", "qas": []}]},
      {"title": "y", "paragraphs": [{"context": "second", "qas": [{"id": "3"}]}]}]})";
  EXPECT_THAT(squad_contexts(file(squad)), ElementsAre("first", "first", "second"));
  EXPECT_THAT(refusal([&] { squad_contexts(file("[]")); }), HasSubstr("is no SQuAD"));
}

TEST(TokenBatch, IsPaddedBehindAndCutOff) {
  BpeTokenizer tokenizer(OSLO_TUTORIAL_DATA "/gpt2-bpe");
  const TokenBatch batch = tokenize(tokenizer, {"Speak", "", "Speak Speak Speak Speak"}, 3);
  const std::int64_t end = tokenizer.end_of_text(), word = tokenizer.encode(" Speak")[0];
  EXPECT_EQ(batch.input_ids.sizes(), (torch::IntArrayRef{3, 3}));
  EXPECT_EQ(batch.input_ids[1][0].item<std::int64_t>(), end);
  EXPECT_EQ(batch.input_ids[2][2].item<std::int64_t>(), word);
  EXPECT_TRUE(torch::equal(batch.attention_mask.eq(0), batch.labels.eq(-100)));
  EXPECT_EQ(batch.attention_mask.sum(1)[1].item<std::int64_t>(), 0);
  EXPECT_EQ(batch.attention_mask.sum(1)[2].item<std::int64_t>(), 3);
}

/// The numbers of a batch are those of its sentences one by one.
TEST(Gpt2WithLabels, PaddingChangesNoNumber) {
  GPT2Config config;
  config.n_positions = 6;
  config.n_embd = 8;
  config.n_layer = config.n_head = 2;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0.0;
  torch::manual_seed(3);
  GPT2WithLabels model(config);
  model->to(torch::kDouble);
  BpeTokenizer tokenizer(OSLO_TUTORIAL_DATA "/gpt2-bpe");
  const Sentences sentences{"Speak, speak.", "Resolved", "Let us kill him, and we"};
  const CausalOutput all = model->forward(tokenize(tokenizer, sentences, 6));
  double sum = 0;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    const TokenBatch batch = tokenize(tokenizer, {sentences[i]}, 6);
    const torch::Tensor alone = model->GPT2LMHeadModelImpl::forward(batch.input_ids);
    const torch::Tensor in_batch =
        all.logits.narrow(0, static_cast<std::int64_t>(i), 1).narrow(1, 0, alone.size(1));
    EXPECT_TRUE(torch::allclose(in_batch, alone)) << sentences[i];
    const CausalOutput output = model->forward(batch);
    sum += output.loss_sum.item<double>();
    tokens += output.tokens.item<std::int64_t>();
  }
  EXPECT_EQ(all.tokens.item<std::int64_t>(), tokens);
  EXPECT_NEAR(all.loss.item<double>(), sum / static_cast<double>(tokens), 1e-12);
}

}  // namespace
}  // namespace gpt2
