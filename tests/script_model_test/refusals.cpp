// TorchScript modules that cannot be trained, or not in this way: refused by name, on every rank.
#include <gmock/gmock.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include "tests/exported_model_test/python_run.h"
#include "tests/support/error_of.h"
#include "tests/support/parity.h"

namespace oslo::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

torch::jit::Module loaded(const std::string& name) {
  return torch::jit::load(OSLO_SOURCE_DIR "/tests/data/script/" + name + ".pt");
}

TEST(ScriptRefusals, AFrozenModuleHasNothingToTrain) {
  EXPECT_THAT(error_of([] { ScriptModule model(loaded("frozen")); }),
              AllOf(HasSubstr("Linear has no parameters"), HasSubstr("torch.jit.freeze")));
}

TEST(ScriptRefusals, CodeThatReplacesABuffer) {
  EXPECT_THAT(error_of([] { ScriptModule model(loaded("counter")); }),
              AllOf(HasSubstr("calls is assigned in Counter"), HasSubstr("self.calls.copy_(")));
}

TEST(ScriptRefusals, AModuleWithoutAForward) {
  torch::jit::Module script("Silent");
  script.register_parameter("weight", torch::ones({2}), /*is_buffer=*/false);
  EXPECT_THAT(error_of([&] { ScriptModule model(script); }), HasSubstr("Silent has no forward"));
}

/// What every rank says of `initialize`.
void expect_refused(const std::function<torch::jit::Module(int rank)>& script,
                    const std::string& config, bool optimized, const std::string& said) {
  run_as_threads(2, [&](World world) {
    const torch::jit::GraphOptimizerEnabledGuard guard(optimized);
    InitializeOptions how;
    how.world = world;
    EXPECT_THAT(error_of([&] { initialize(script(world.rank()), Config::parse(config), how); }),
                HasSubstr(said))
        << "rank " << world.rank();
  });
}

TEST(ScriptRefusals, WhatInitializeRefusesEveryRankRefuses) {
  const std::string tensor = parity::tensor_parallel(2);
  const auto lm = [](int) { return loaded("lm"); };
  expect_refused(lm, tensor, true, "torch::jit::setGraphExecutorOptimize(false)");
  expect_refused([](int rank) { return loaded(rank == 1 ? "frozen" : "lm"); }, tensor, false,
                 "rank 1: the TorchScript module Linear has no parameters");
  expect_refused(lm, R"({"model_parallelism": {"enable": true, "pipeline_parallel_size": 2}})",
                 false, "a TorchScript module runs on one pipeline stage");
}

TEST(ScriptRefusals, StagesOfAModelThatHoldsOneAreRefusedByItsPath) {
  struct NetImpl : torch::nn::Module {
    NetImpl() { register_module("text", std::make_shared<ScriptModule>(loaded("lm"))); }
  };
  run_as_threads(2, [&](World world) {
    InitializeOptions how;
    how.world = world;
    const auto net = make_seeded(1, [] { return std::make_shared<NetImpl>(); });
    const char* config = R"({"model_parallelism": {"enable": true, "pipeline_parallel_size": 2}})";
    EXPECT_THAT(error_of([&] { initialize(net, Config::parse(config), how); }),
                HasSubstr("initialize: text: a TorchScript module runs on one pipeline stage"));
  });
}

}  // namespace
}  // namespace oslo::test
