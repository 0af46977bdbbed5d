// Context parallelism beside the other axes, in every dialect, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/models/sequence_language_model.h"
#include "tests/support/error_of.h"

namespace sequence_model {
namespace {

using ::testing::HasSubstr;

TEST(ContextGrid, BesideTensorParallelism) {
  for (const char* form : {"gather", "ulysses", "ring"}) {
    for (const bool by_hand : {false, true}) {
      if (by_hand && form == std::string("ring")) continue;  // refused by name
      const std::string config = std::string(R"({"model_parallelism": {"enable": true,
          "tensor_parallel_size": 2}, "context_parallel_size": 2, "context_attention": ")") +
                                 form + "\", " + in_order(kOrders[by_hand ? 0 : 1]) + "}";
      expect_equal(four_heads(by_hand), {.length = 9, .world = 4, .whole = config},
                   [](const oslo::ParallelModel& parallel, LanguageModel&) {
                     EXPECT_EQ(parallel.mpu().size("context"), 2);
                     EXPECT_EQ(parallel.mpu().get_sequence_parallel_world_size(), 2);
                     EXPECT_EQ(parallel.mpu().get_tensor_parallel_world_size(), 2);
                   });
    }
  }
}

TEST(ContextGrid, ColossalAIsModeIsTheSame) {
  oslo::run_as_threads(2, [&](oslo::World world) {
    at::set_num_threads(1);
    LanguageModel model = parity::make_seeded(7, [&] { return LanguageModel(Options()); });
    oslo::InitializeOptions how;
    how.world = world;
    const auto parallel = oslo::initialize(
        model, oslo::Config::parse(R"({"parallel": {"tensor": {"size": 2, "mode": "sequence"}}})"),
        how);
    EXPECT_EQ(parallel.mpu().size("context"), 2);
    EXPECT_EQ(parallel.mpu().get_sequence_parallel_rank(), world.rank());
    EXPECT_EQ(parallel.mpu().get_data_parallel_world_size(), 1);
  });
}

TEST(ContextGrid, KeysAndValuesThatComeToQueriesAreNoLoss) {
  for (const char* form : {"gather", "ulysses", "ring"}) {
    const auto config = c10::str(R"("strict": true, "context_attention": ")", form, "\"");
    expect_equal({}, {.ranks = 3, .config = config, .steps = 1});
  }
}

TEST(ContextGrid, RefusedByName) {
  const auto error = [](const std::string& config, int world) {
    return oslo::test::error_of([&] { oslo::Config::parse(config).resolve(world); });
  };
  EXPECT_THAT(error(R"({"parallel": {"tensor": {"size": 2, "mode": "sequence"}},
                        "context_parallel_size": 2})",
                    4),
              HasSubstr("both cut the sequence: keep one of them"));
  EXPECT_THAT(error(R"({"context_parallel_size": 3})", 4), HasSubstr("'context_parallel_size' 3"));
  EXPECT_THAT(error(R"({"context_attention": "rings"})", 2), HasSubstr("ring"));
  EXPECT_THAT(error(R"({"context_order": "tail"})", 2), HasSubstr("head_tail"));
}

TEST(ContextGrid, AModelWithoutASequenceIsRefusedByName) {
  const std::string error = oslo::test::error_of([&] {
    oslo::run_as_threads(2, [&](oslo::World world) {
      auto model =
          parity::make_seeded(7, [] { return torch::nn::Sequential(torch::nn::Linear(4, 3)); });
      oslo::InitializeOptions how;
      how.world = world;
      oslo::initialize(model, oslo::Config::parse(R"({"context_parallel_size": 2})"), how);
    });
  });
  EXPECT_THAT(error, HasSubstr("set InitializeOptions::example_inputs"));
}

}  // namespace
}  // namespace sequence_model
