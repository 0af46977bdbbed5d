#include "tests/models/bert.h"
#include "tests/models/gpt2.h"
#include "tests/models/llama.h"
#include "tests/support/parity.h"

// Untouched models at tensor sizes that divide their heads and that do not, alone and beside data
// parallelism, planned by structure alone and with an example to learn heads and blocks from.
namespace {

struct Mesh {
  int tensor, data;
  bool example;
};

class Models : public testing::TestWithParam<Mesh> {
 protected:
  parity::Setup setup() const {
    parity::Setup setup;
    setup.world = GetParam().tensor * GetParam().data;
    setup.config = parity::tensor_parallel(GetParam().tensor);
    setup.example = GetParam().example;
    return setup;
  }

  /// Trains and compares; where an example told the planner what the model does, nothing is
  /// gathered.
  template <typename Model, typename Options>
  void expect_language_model(const Options& options) {
    const auto batch = [&](int) {
      return parity::Batch{torch::randint(options.vocabulary, {4, 11}),
                           torch::randint(options.vocabulary, {4, 11})};
    };
    const auto loss = [](const torch::Tensor& logits, const torch::Tensor& target) {
      return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}),
                                                  target.reshape({-1}));
    };
    parity::expect_parity(
        setup(), [&] { return Model(options); }, batch, loss, check());
  }

  std::function<void(const parity::Outcome&)> check() const {
    return [example = GetParam().example](const parity::Outcome& outcome) {
      outcome.parallel.check();
      const auto plan = outcome.parallel.plan();
      if (example) {
        EXPECT_EQ(plan.gathers.size(), 0) << plan.to_string();
      }
    };
  }
};

TEST_P(Models, Gpt2WithFusedAttention) {
  expect_language_model<models::GPT2>(models::GPT2Options());
}

TEST_P(Models, Gpt2WithAttentionByHand) {
  models::GPT2Options options;
  options.fused_attention = false;
  options.vocabulary = 53;
  expect_language_model<models::GPT2>(options);
}

TEST_P(Models, LlamaWithGroupedQueries) {
  expect_language_model<models::Llama>(models::LlamaOptions());
}

TEST_P(Models, LlamaThatRepeatsKeyHeads) {
  models::LlamaOptions options;
  options.repeat_kv = true;
  expect_language_model<models::Llama>(options);
}

TEST_P(Models, BertClassifier) {
  const models::BertOptions options;
  const auto batch = [&](int) {
    auto tokens = torch::randint(1, options.vocabulary, {4, 9});
    tokens.slice(1, 7, 9).fill_(options.padding);  // a row that no rank but the last holds
    return parity::Batch{tokens, torch::randint(options.labels, {4})};
  };
  const auto loss = [](const torch::Tensor& logits, const torch::Tensor& target) {
    return torch::nn::functional::cross_entropy(logits, target);
  };
  parity::expect_parity(
      setup(), [&] { return models::Bert(options); }, batch, loss, check());
}

INSTANTIATE_TEST_SUITE_P(Meshes, Models,
                         testing::Values(Mesh{2, 1, false}, Mesh{3, 1, false}, Mesh{4, 1, false},
                                         Mesh{2, 2, false}, Mesh{2, 1, true}, Mesh{3, 1, true},
                                         Mesh{4, 1, true}, Mesh{2, 2, true}),
                         [](const auto& info) {
                           return "tp" + std::to_string(info.param.tensor) + "dp" +
                                  std::to_string(info.param.data) +
                                  (info.param.example ? "WithExample" : "ByStructure");
                         });

}  // namespace
