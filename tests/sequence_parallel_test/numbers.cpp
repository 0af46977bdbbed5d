// "sequence_parallel" beside a tensor size: outputs, gradients and weights of plain LibTorch.
#include "tests/models/bert.h"
#include "tests/models/llama.h"
#include "tests/models/t5.h"
#include "tests/sequence_parallel_test/streams.h"

namespace sequence_parallel {
namespace {

struct Case {
  int world = 2, tensor = 2;
  int64_t rows = 4, length = 8;
  std::string more = {};
  bool stream_stays_cut = true;  ///< nothing is gathered, and no product all-reduced
};

template <typename Make>
void expect_as_one_device(const Case& test, const Make& make, int64_t vocabulary,
                          int64_t classes = 0) {
  parity::Setup setup;
  setup.world = test.world;
  setup.config = config(test.tensor, test.more);
  setup.example = true;
  const auto batch = [&](int) {
    const auto tokens = torch::randint(1, vocabulary, {test.rows, test.length});
    return parity::Batch{tokens, classes > 0 ? torch::randint(classes, {test.rows})
                                             : torch::randint(vocabulary, tokens.sizes())};
  };
  parity::expect_parity(setup, make, batch, token_loss, [&](const parity::Outcome& outcome) {
    const Moved moved = moved_by(outcome.parallel);
    EXPECT_GT(all_of(moved, "reduce_scatter").first, 0);
    if (!test.stream_stays_cut) return;
    EXPECT_TRUE(outcome.parallel.plan().gathers.empty()) << outcome.parallel.plan().to_string();
    for (const char* product : {"aten::matmul", "aten::linear", "aten::addmm", "aten::embedding"}) {
      EXPECT_EQ(moved.count(std::string("all_reduce ") + product), 0) << product;
    }
  });
}

const auto gpt2 = [] { return models::GPT2(gpt2_options()); };

TEST(SequenceParallelKey, PreNorm) {
  expect_as_one_device({}, gpt2, 35);
  expect_as_one_device({.length = 7}, gpt2, 35);
  expect_as_one_device({.world = 3, .tensor = 3, .length = 13}, gpt2, 35);
}

TEST(SequenceParallelKey, ARankWithoutTokens) {
  expect_as_one_device({.world = 3, .tensor = 3, .length = 2}, gpt2, 35);
}

TEST(SequenceParallelKey, PostNorm) {
  const auto bert = [] { return models::Bert(models::BertOptions()); };
  // The pooler looks at the first position alone.
  expect_as_one_device({.length = 7, .stream_stays_cut = false}, bert, 61, 5);
  expect_as_one_device({.world = 3, .tensor = 3, .length = 13, .stream_stays_cut = false}, bert, 61,
                       5);
}

TEST(SequenceParallelKey, RootMeanSquareNorm) {
  const auto llama = [] { return models::Llama(models::LlamaOptions()); };
  expect_as_one_device({.length = 7}, llama, 70);
  expect_as_one_device({.world = 3, .tensor = 3, .length = 13}, llama, 70);
}

struct T5OnTokensImpl : torch::nn::Module {
  T5OnTokensImpl() { t5 = register_module("t5", models::T5(models::T5Config())); }
  Tensor forward(const Tensor& tokens) {
    return t5->forward(tokens, torch::ones(tokens.sizes(), torch::kDouble), tokens.slice(1, 2));
  }
  models::T5 t5{nullptr};
};
TORCH_MODULE(T5OnTokens);

TEST(SequenceParallelKey, EncoderAndDecoder) {
  parity::Setup setup;
  for (const int ranks : {2, 3}) {
    setup.world = ranks;
    setup.config = config(ranks);
    setup.example = true;
    parity::expect_parity(
        setup, [] { return T5OnTokens(); },
        [](int) {  // 9 tokens to the encoder, 7 to the decoder
          return parity::Batch{torch::randint(50, {3, 9}), torch::randint(50, {3, 7})};
        },
        token_loss,
        [](const parity::Outcome& outcome) {
          EXPECT_TRUE(outcome.parallel.plan().gathers.empty());
        });
  }
}

TEST(SequenceParallelKey, LibTorchsEncoder) {
  const auto turned = [] { return EncoderModel(); };
  expect_as_one_device({.length = 7, .stream_stays_cut = false}, turned, 31);
  expect_as_one_device({.world = 3, .tensor = 3, .length = 13, .stream_stays_cut = false}, turned,
                       31);
}

TEST(SequenceParallelKey, SequenceInFront) {
  // [sequence, batch] all the way: 7 or 13 rows are the sequence, 4 columns the batch.
  const auto in_front = [] { return EncoderModel(0, /*turned=*/false); };
  expect_as_one_device({.rows = 7, .length = 4, .stream_stays_cut = false}, in_front, 31);
  expect_as_one_device(
      {.world = 3, .tensor = 3, .rows = 13, .length = 4, .stream_stays_cut = false}, in_front, 31);
}

TEST(SequenceParallelKey, BesideDataParallelRanks) {
  expect_as_one_device({.world = 4, .length = 7}, gpt2, 35);
}

TEST(SequenceParallelKey, AtTensorSizeOneNothingIsCut) {
  parity::Setup setup;
  setup.config = config(1);
  setup.example = true;
  parity::expect_parity(
      setup, gpt2,
      [](int) {
        const auto tokens = torch::randint(35, {4, 7});
        return parity::Batch{tokens, tokens};
      },
      token_loss);
}

TEST(SequenceParallelKey, IsChosenWhereAMemoryLimitIsNotKeptOtherwise) {
  const auto make = [] {
    models::GPT2 model(gpt2_options());
    model->to(torch::kDouble);
    return model;
  };
  const Tensor tokens = torch::arange(52).mul(13).remainder(35).view({4, 13});
  const std::string plain = R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2}})";
  oslo::run_as_threads(2, [&](const oslo::World& world) {
    at::set_num_threads(1);
    models::GPT2 model{nullptr};
    const auto initialized = [&](const std::string& text, int64_t limit) {
      model = oslo::test::make_seeded(7, make);
      oslo::InitializeOptions how;
      how.world = world;
      how.memory_limit = limit;
      how.example_inputs = [&] { token_loss(model->forward(tokens), tokens).backward(); };
      return oslo::initialize(model, oslo::Config::parse(text), how);
    };
    const auto needed = [](const oslo::ParallelModel& parallel) {
      const oslo::PlanForecast forecast = parallel.plan().forecast;
      return forecast.parameter_bytes + forecast.kept_bytes;
    };
    const int64_t most = needed(initialized(plain, 0)), least = needed(initialized(config(2), 0));
    ASSERT_LT(least, most);
    const int64_t limit = (most + least) / 2;
    const auto parallel = initialized(plain, limit);
    EXPECT_LE(needed(parallel), limit);
    EXPECT_NE(parallel.plan().to_string().find("as memory_limit is not kept otherwise"),
              std::string::npos);
    models::GPT2 reference = oslo::test::make_seeded(7, make);
    token_loss(reference->forward(tokens), tokens).backward();
    token_loss(model->forward(tokens), tokens).backward();
    parity::expect_gradients(*model, *reference);
    EXPECT_THROW(initialized(plain, least / 2), oslo::Error);
  });
}

/// Acceptance case Q7: norms and biases are whole while the stream is cut, and count once.
TEST(SequenceParallelKey, TheNormOfGradientsOverEightRanks) {
  models::GPT2Options options = gpt2_options();
  options.heads = 8;
  const auto make = [&] {
    models::GPT2 model(options);
    model->to(torch::kDouble);
    return model;
  };
  const Tensor tokens = torch::arange(22).mul(13).remainder(35).view({2, 11});
  for (const std::string& text : {config(8), std::string(R"({"context_parallel_size": 8})")}) {
    oslo::run_as_threads(8, [&](const oslo::World& world) {
      at::set_num_threads(1);
      models::GPT2 reference = oslo::test::make_seeded(7, make);
      models::GPT2 model = oslo::test::make_seeded(7, make);
      oslo::InitializeOptions how;
      how.world = world;
      how.example_inputs = [&] { token_loss(model->forward(tokens), tokens).backward(); };
      const auto parallel = oslo::initialize(model, oslo::Config::parse(text), how);
      token_loss(reference->forward(tokens), tokens).backward();
      token_loss(model->forward(tokens), tokens).backward();
      constexpr double kNoLimit = 1e30;
      using torch::nn::utils::clip_grad_norm_;
      const double norm = clip_grad_norm_(reference->parameters(), kNoLimit);
      EXPECT_NEAR(clip_grad_norm_(model->parameters(), kNoLimit), norm, 1e-12 * norm) << text;
      EXPECT_NEAR(parallel.clip_grad_norm_(kNoLimit), norm, 1e-12 * norm) << text;
    });
  }
}

}  // namespace
}  // namespace sequence_parallel
