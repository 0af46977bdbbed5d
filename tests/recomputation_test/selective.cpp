// Acceptance A5 but for its times: the bytes that a GPT-2's blocks leave for backward, and the
// products that a step makes, where nothing, everything or a part is computed again.
#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "parallelizers/memory/recompute/layer_segments.h"
#include "parallelizers/memory/recompute/record/given_up.h"
#include "tests/recomputation_test/gpt2.h"
#include "tests/support/counted_memory.h"
#include "tests/support/counted_products.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test::selective {
namespace {

using recompute::least_to_give_up;
using recompute::Weighed;
using testing::ElementsAre;
using testing::IsEmpty;
using torch::Tensor;

TEST(LeastToGiveUp, IsTheCheapestChoiceThatFreesEnough) {
  // A block's query-key-value, attention, projection and the first half of its perceptron: the
  // cheapest for its bytes alone would not be enough, and the next with it too much.
  const std::vector<Weighed> block = {{3, 3}, {1, 1.3}, {1, 1}, {4, 4}};
  EXPECT_THAT(least_to_give_up(block, 0), IsEmpty());
  EXPECT_THAT(least_to_give_up(block, -1), IsEmpty());
  EXPECT_THAT(least_to_give_up(block, 1), ElementsAre(2));
  EXPECT_THAT(least_to_give_up(block, 2), ElementsAre(1, 2));
  EXPECT_THAT(least_to_give_up(block, 3), ElementsAre(0));
  EXPECT_THAT(least_to_give_up(block, 100), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(least_to_give_up({}, 1), IsEmpty());
  EXPECT_THAT(least_to_give_up({{2, 1}, {1, 1}}, 1), ElementsAre(1)) << "keeps what costs nothing";
}

TEST(LeastToGiveUp, OfManyThingsIsEnoughAndNothingTooMuch) {
  std::minstd_rand random(7);
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<Weighed> things(11 + random() % 20);
    double all = 0;
    for (Weighed& each : things) {
      each = {1.0 + random() % 9, 1.0 + random() % 9};
      all += each.bytes;
    }
    const double asked = 1 + random() % static_cast<int>(all);
    double freed = 0;
    const std::vector<int> chosen = least_to_give_up(things, asked);
    for (const int each : chosen) freed += things[each].bytes;
    EXPECT_GE(freed, asked);
    for (const int each : chosen) EXPECT_LT(freed - things[each].bytes, asked);
  }
}

constexpr int64_t kLayers = 4, kRows = 5, kPositions = 24, kHidden = 36;

/// A GPT-2's blocks alone: what its embedding and its loss keep is the same in every form.
struct BlocksImpl : torch::nn::Module {
  explicit BlocksImpl(int64_t layers, double dropout = 0) {
    models::GPT2Options options = small_gpt2(layers, dropout);
    options.hidden = kHidden;
    for (int64_t i = 0; i < layers; ++i) h->push_back(models::GPT2Block(options));
    first = register_parameter("first", torch::randn({kHidden}));
    last = register_parameter("last", torch::randn({1}));
  }
  Tensor forward(const Tensor& input) {
    Tensor x = input + first;
    for (const auto& block : *h) x = block->as<models::GPT2Block>()->forward(x);
    return x.sum() * last;
  }
  torch::nn::ModuleList h = register_module("h", torch::nn::ModuleList());
  Tensor first, last;
};
TORCH_MODULE(Blocks);

std::string config_of(const std::string& form) {
  return R"({"model_parallelism": {"enable": true}, "activation_checkpoint": {)" + form + "}}";
}

const std::string kPlain = R"("enabled": false)", kAll = R"("enabled": true)",
                  kKeep = R"("enabled": true, "keep": ["matmul", "attention"])",
                  kHalf = kKeep + R"(, "keep_at_most": 0.5)";

struct Figures {
  double kept = 0, most = 0;      ///< in sizes of a segment's input
  double products = 0;            ///< of a step, in those that one block's forward makes
  std::vector<Tensor> gradients;  ///< of all parameters
};

class Selective : public testing::Test {
 protected:
  /// The second step: the first one tries the segments.
  static Figures run(const std::string& form, int64_t layers = kLayers) {
    Figures found;
    run_as_threads(1, [&](World world) {
      at::set_num_threads(1);
      auto model = make_seeded(3, [&] { return Blocks(layers); });
      const Tensor input = make_seeded(4, [] {
        return torch::randn({kRows, kPositions, kHidden});
      });
      const auto parallel = initialize(model, Config::parse(config_of(form)), in(world));
      const double unit = static_cast<double>(input.nbytes());
      model->forward(input).backward();
      model->zero_grad(/*set_to_none=*/false);  // so that gradients are not counted
      const CountedMemory memory;
      const CountedProducts products;
      const Tensor loss = model->forward(input);
      found.kept = static_cast<double>(memory.bytes()) / unit;
      loss.backward();
      found.most = static_cast<double>(memory.most()) / unit;
      found.products = products.made() / (2.0 * kRows * kPositions * 12 * kHidden * kHidden);
      for (const Tensor& each : model->parameters()) found.gradients.push_back(each.grad());
    });
    return found;
  }

  static void expect_same(const Figures& found, const Figures& plain) {
    for (size_t i = 0; i < plain.gradients.size(); ++i) {
      EXPECT_TRUE(found.gradients[i].equal(plain.gradients[i])) << i;
    }
  }
};

/// What attention's kernel saves beside its result, and the like.
constexpr double kCrumbs = 0.2;

TEST_F(Selective, PlainBlocksKeepSixteenTimesTheirInput) {
  const Figures plain = run(kPlain);
  EXPECT_NEAR(plain.kept, 16 * kLayers, kCrumbs * kLayers);
  EXPECT_NEAR(plain.products, 3 * kLayers, 1e-9);
}

TEST_F(Selective, AllProductsKeptLeaveTenSixteenthsAndNoProductIsMadeAgain) {
  const Figures plain = run(kPlain), keep = run(kKeep);
  expect_same(keep, plain);
  EXPECT_NEAR(keep.kept, 10 * kLayers, kCrumbs * kLayers);
  EXPECT_EQ(keep.products, plain.products);
}

TEST_F(Selective, HalfOfTheBytesForATwentiethOfTheProducts) {
  const Figures plain = run(kPlain), half = run(kHalf);
  expect_same(half, plain);
  EXPECT_LE(half.kept, 0.5 * plain.kept);
  EXPECT_GT(half.kept, 0.5 * plain.kept - kLayers);
  EXPECT_GT(half.products, plain.products);
  EXPECT_LE(half.products, 1.06 * plain.products);
}

TEST_F(Selective, EverythingAgainKeepsWhatTheFormulaSays) {
  const Figures plain = run(kPlain), one = run(kPlain, 1);
  const double of_a_layer = one.kept - 1;
  for (const auto& [form, every] :
       {std::pair{kAll, 1}, {kAll + R"(, "every": 2)", 2}, {kAll + R"(, "every": 3)", 3}}) {
    SCOPED_TRACE(form);
    const Figures all = run(form);
    expect_same(all, plain);
    const double segments = std::ceil(double(kLayers) / every);
    EXPECT_LE(all.kept, 1.1 * segments);
    const double what_a_backward_needs_beside = one.most - one.kept;
    EXPECT_LE(all.most, 1.1 * (segments + every * of_a_layer) + what_a_backward_needs_beside);
    EXPECT_LE(all.products, 4 * kLayers);
  }
}

TEST_F(Selective, OnRanksTheyDecideAlike) {
  for (const int size : {2, 3}) {
    for (const double share : {0.3, 0.5, 0.6}) {
      SCOPED_TRACE(c10::str(size, " ranks, ", share));
      parity::Setup setup;
      setup.world = size;
      setup.config =
          c10::str(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )", size,
                   R"(}, "activation_checkpoint": {)", kKeep, R"(, "keep_at_most": )", share, "}}");
      setup.example = true;
      parity::expect_parity(
          setup, [] { return models::GPT2(small_gpt2(3)); },
          [](int) {
            const Tensor tokens = torch::randint(19, {4, 7});
            return parity::Batch{tokens, tokens};
          },
          loss_of_tokens);
    }
  }
}

TEST_F(Selective, SharesAreChecked) {
  EXPECT_THAT(error_of([] { CheckpointOptions().keep_at_most(0); }),
              testing::HasSubstr("above 0 and up to 1"));
  const auto error = [](const std::string& form) {
    return error_of([&] { Config::parse(config_of(form)).resolve(1); });
  };
  EXPECT_THAT(error(kKeep + R"(, "keep_at_most": 1.5)"), testing::HasSubstr("up to 1"));
  EXPECT_THAT(error(kAll + R"(, "keep_at_most": 0.5)"), testing::HasSubstr("beside no 'keep'"));
  EXPECT_NO_THROW(Config::parse(config_of(kHalf)).resolve(1));
}

}  // namespace
}  // namespace oslo::test::selective
