// What an engine cannot do, and keys that have nobody who acts on them: by name, on every rank.
#include "tests/engine_test/cases.h"
#include "tests/support/error_of.h"
#include "tests/support/errors_of.h"

namespace oslo::test::engines {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

std::vector<std::string> without_engine(const char* text) {
  return errors_of(2, [&](World world) {
    torch::nn::Sequential model = make_net();
    initialize(model, Config::parse(text), in(world));
  });
}

TEST(EngineKeys, WithoutAnEngineAreRefusedWithTheLineToWrite) {
  const auto refused = [](const char* text, const std::vector<std::string>& parts) {
    for (const std::string& error : without_engine(text)) {
      expect_contains(error, parts);
      expect_contains(error,
                      {"oslo::initialize(model, optimizer, criterion, train_loader, config)"});
    }
  };
  refused(R"({"parallel": {}, "gradient_accumulation": 4})",
          {"'gradient_accumulation' = 4", "first 3 of 4 batches under ddp.no_sync()", "loss / 4",
           "\"num_accumulation_steps\": 4"});
  refused(R"({"parallel": {}, "clip_grad_norm": 0.5})",
          {"'clip_grad_norm' = 0.5", "parallel.clip_grad_norm_(0.5);"});
  refused(R"({"parallel": {}, "gradient_handler": [{"type": "DataParallelGradientHandler"}]})",
          {"'gradient_handler'", "oslo::DistributedDataParallel"});
  refused(R"({"parallel": {}, "fp16": {"init_scale": 512}})",
          {"'fp16'", "oslo::GradScalerOptions().init_scale(512)"});
  EXPECT_THAT(without_engine(R"({"parallel": {}, "gradient_accumulation": 1, "fp16": {},
                                 "gradient_handler": [], "clip_grad_norm": 0})"),
              Each(""));
}

/// What making an engine over `ranks` throws.
std::vector<std::string> making(const char* text, int ranks) {
  return errors_of(ranks, [&](World world) {
    torch::nn::Sequential model = make_net();
    torch::optim::SGD optimizer = make_optimizer(model);
    oslo::initialize(model, optimizer, mean_loss, make_batches({4}), Config::parse(text),
                     in(world));
  });
}

TEST(EngineKeys, AHandlerHasToAverageOverDataRanks) {
  const char* const shared =
      R"({"parallel": {}, "gradient_handler": [{"type": "PipelineSharedModuleGradientHandler"}]})";
  EXPECT_THAT(making(shared, 2),
              Each(AllOf(HasSubstr("PipelineSharedModuleGradientHandler"),
                         HasSubstr("2 data ranks"), HasSubstr("DataParallelGradientHandler"))));
  EXPECT_THAT(making(shared, 1), Each(""));
  EXPECT_THAT(making(R"({"parallel": {"pipeline": 2},
                         "gradient_handler": [{"type": "PipelineSharedModuleGradientHandler"}]})",
                     4),
              Each(""));
}

TEST(EngineKeys, HandlersOfWhatThereIsNotAreRefused) {
  for (const char* name : {"ZeROGradientHandler", "MoeGradientHandler"}) {
    const std::string text =
        c10::str(R"({"parallel": {}, "gradient_handler": [{"type": ")", name, R"("}]})");
    EXPECT_THAT(making(text.c_str(), 2), Each(AllOf(HasSubstr(name), HasSubstr("not there yet"))));
  }
}

TEST(EngineKeys, ZerosFirstStagesAreRefusedBesideAnEngine) {
  EXPECT_THAT(making(R"({"parallel": {}, "zero_optimization": {"enabled": true}})", 2),
              Each(AllOf(HasSubstr("'zero_optimization.enabled' = true at stage 1, and an engine"),
                         HasSubstr("oslo::ZeroOptimizer"))));
}

struct Alone {
  torch::nn::Sequential model = make_net();
  torch::optim::SGD optimizer = make_optimizer(model);
  Batches batches = make_batches({4, 4});

  auto engine(const std::string& more) {
    return oslo::initialize(model, optimizer, mean_loss, batches,
                            Config::parse(engine_config({}, more)), in(World::alone()));
  }
};

TEST(Engine, AStepWithoutABackwardPassIsRefused) {
  Alone alone;
  auto [engine, loader] = alone.engine("");
  const Example& batch = alone.batches[0];
  engine.criterion(engine(batch.data), batch.target).backward();
  expect_contains(error_of([&engine = engine] { engine.step(); }),
                  {"nothing went backward", "engine.backward(loss), not loss.backward()"});
}

TEST(Engine, MoreBatchesThanAStepHasAreRefused) {
  Alone alone;
  auto [engine, loader] = alone.engine(R"(, "gradient_accumulation": 2)");
  const auto backward = [&engine = engine, &batch = alone.batches[0]] {
    engine.backward(engine.criterion(engine(batch.data), batch.target));
  };
  backward();
  backward();
  expect_contains(error_of(backward), {"2 batches", "engine.step()"});
  EXPECT_TRUE(engine.step());
  backward();
}

TEST(Engine, ALoopAndAScheduleInOneStepAreRefused) {
  Alone alone;
  auto [engine, loader] = alone.engine(R"(, "gradient_accumulation": 2)");
  oslo::PipelineSchedule schedule(engine, 2);
  auto data = loader.begin();
  engine.backward(engine.criterion(engine(data->data), data->target));
  expect_contains(error_of([&, &engine = engine] { schedule.forward_backward_step(engine, data); }),
                  {"engine.backward and a PipelineSchedule in one step"});
}

TEST(Engine, AWholeForwardOfADividedBatchIsRefused) {
  Alone alone;
  auto [engine, loader] = alone.engine(R"(, "NUM_MICRO_BATCHES": 4)");
  const auto forward = [&engine = engine, &batch = alone.batches[0]] { engine(batch.data); };
  expect_contains(error_of(forward), {"4 micro-batches", "oslo::PipelineSchedule(engine, 4)",
                                      "'NUM_MICRO_BATCHES' to 1"});
  const torch::NoGradGuard no_grad;
  forward();
}

TEST(Engine, OverPipelineStagesASchedulesRuns) {
  EXPECT_THAT(errors_of(2,
                        [](World world) {
                          torch::nn::Sequential model = make_net();
                          torch::optim::SGD optimizer = make_optimizer(model);
                          auto [engine, loader] = oslo::initialize(
                              model, optimizer, mean_loss, make_batches({4}),
                              Config::parse(engine_config({1, 1, 2}, "")), in(world));
                          engine.backward(torch::ones({}, torch::requires_grad()));
                        }),
              Each(HasSubstr("oslo::PipelineSchedule(engine, n).forward_backward_step")));
}

TEST(EngineSchedule, StagesOfARankAreTheConfigs) {
  EXPECT_THAT(errors_of(2,
                        [](World world) {
                          torch::nn::Sequential model = make_net();
                          torch::optim::SGD optimizer = make_optimizer(model);
                          auto [engine, loader] = oslo::initialize(
                              model, optimizer, mean_loss, make_batches({4}),
                              Config::parse(engine_config({1, 1, 2}, "")), in(world));
                          oslo::InterleavedPipelineSchedule schedule(engine, 2, 2);
                        }),
              Each(HasSubstr("\"num_model_chunks\": 2")));
}

}  // namespace
}  // namespace oslo::test::engines
