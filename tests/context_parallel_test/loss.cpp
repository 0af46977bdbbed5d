// The loss of a language model whose sequence is cut, as for one device: nothing is passed in, and
// logits are not gathered (acceptance cases Q1, Q2).
#include <gtest/gtest.h>

#include <string>

#include "tests/models/sequence_language_model.h"

namespace sequence_model {
namespace {

struct LossCase {
  int ranks;
  int64_t length;
  bool by_hand;
  Shift shift;
  const char* order = "contiguous";
};

class LossOnASequence : public ::testing::TestWithParam<LossCase> {};

INSTANTIATE_TEST_SUITE_P(
    Over, LossOnASequence,
    ::testing::Values(LossCase{2, 8, false, Shift::slices}, LossCase{2, 9, true, Shift::slices},
                      LossCase{2, 13, false, Shift::slices}, LossCase{3, 8, true, Shift::slices},
                      LossCase{3, 9, false, Shift::slices}, LossCase{3, 13, true, Shift::slices},
                      LossCase{2, 9, false, Shift::roll}, LossCase{3, 8, false, Shift::labels},
                      LossCase{2, 8, false, Shift::slices, "head_tail"},
                      LossCase{3, 13, true, Shift::slices, "head_tail"},
                      LossCase{2, 9, false, Shift::roll, "head_tail"},
                      LossCase{3, 8, false, Shift::labels, "head_tail"}),
    [](const auto& info) {
      const LossCase& c = info.param;
      return std::to_string(c.ranks) + "Ranks" + std::to_string(c.length) +
             (c.by_hand ? "ByHand" : "Fused") +
             (c.shift == Shift::slices ? "Slices"
              : c.shift == Shift::roll ? "Roll"
                                       : "Labels") +
             "_" + c.order;
    });

/// What moved for operators other than attention: the gradients of weights, and numbers.
void expect_no_gather_of_logits(const oslo::ParallelModel& parallel, const Options& o) {
  for (const auto& entry : parallel.mpu().group("context")->ledger().entries()) {
    const bool sums = entry.operation == "all_reduce";
    const bool attention = entry.rule == "aten::scaled_dot_product_attention" ||
                           (o.by_hand && entry.rule == "aten::matmul");
    EXPECT_TRUE(sums || attention || entry.rule == "full_tensor")
        << entry.operation << " for " << entry.rule;
  }
}

TEST_P(LossOnASequence, EqualsOneDevices) {
  const LossCase& c = GetParam();
  Options o;
  o.by_hand = c.by_hand;
  o.shift = c.shift;
  expect_equal(o, {.ranks = c.ranks, .config = in_order(c.order), .length = c.length},
               [&](const oslo::ParallelModel& parallel, LanguageModel&) {
                 expect_no_gather_of_logits(parallel, o);
               });
}

TEST(LossOnASequence, MostOfTheLabelsOnOneRank) {
  const auto first_nine = [](const Tensor& ids) {
    return torch::arange(ids.size(1)).lt(9).expand_as(ids);
  };
  for (const char* order : kOrders) {
    expect_equal({}, {.ranks = 3, .config = in_order(order), .length = 13, .ignored = first_nine});
  }
}

TEST(LossOnASequence, WithoutAnExample) {
  for (const char* order : kOrders) {
    expect_equal({}, {.ranks = 2, .config = in_order(order), .length = 9, .example = false});
  }
}

TEST(LossOnASequence, SequencesShorterThanTheRanks) {
  for (const char* order : kOrders) {
    expect_equal({}, {.ranks = 3, .config = in_order(order), .length = 2});
  }
}

/// A word's loss is 1, whatever the word.
struct OneAWordImpl : torch::nn::Module {
  OneAWordImpl() {
    wte = register_module("wte", torch::nn::Embedding(13, 1));
    torch::nn::init::ones_(wte->weight);
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& ids) { return wte->forward(ids).mean(); }
  torch::nn::Embedding wte{nullptr};
};
TORCH_MODULE(OneAWord);

/// Acceptance case Q6: 8 ranks with 100 words each; 0.125 and 8 are what others made of it.
TEST(LossOnASequence, AMeanOverEightRanksIsAMean) {
  const Tensor ids = torch::arange(800).remainder(13).unsqueeze(0);
  for (const char* order : kOrders) {
    oslo::run_as_threads(8, [&](oslo::World world) {
      at::set_num_threads(1);
      OneAWord model, reference;
      oslo::InitializeOptions how;
      how.world = world;
      const auto config = c10::str(R"({"context_parallel_size": 8, )", in_order(order), "}");
      oslo::initialize(model, oslo::Config::parse(config), how);
      const Tensor loss = model->forward(ids);
      EXPECT_EQ(loss.item<double>(), 1);
      loss.backward();
      reference->forward(ids).backward();
      parity::expect_gradients(*model, *reference);
    });
  }
}

}  // namespace
}  // namespace sequence_model
