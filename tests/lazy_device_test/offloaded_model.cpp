// The config's activation_checkpoint.offload: a model that nobody wrote for it, on a device that
// does nothing before it must.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "parallelizers/memory/saved_tensors.h"
#include "tests/lazy_device_test/late_operators.h"
#include "tests/lazy_device_test/late_tensors.h"
#include "tests/lazy_device_test/lazy_device.h"
#include "tests/lazy_device_test/offloaded_net.h"
#include "tests/support/initialized.h"
#include "tests/support/tool_process.h"

namespace oslo::offloaded_model_test {
namespace {

using test::device_bytes;
using test::Words;

std::string with(const std::string& keys) {
  return R"({"model_parallelism": {"enable": true}, "activation_checkpoint": {)" + keys + "}}";
}

struct Outcome {
  std::vector<Tensor> numbers;  ///< losses and gradients of each step, then the weights
  int64_t most = 0;             ///< bytes beside the weights; where copies are waited for
  std::vector<int64_t> after_forward;
};

/// Steps as a user writes them. What goes out is there when backward begins, and comes back late.
/// `waits`: all copies are done after each operator, so that the device's memory is that of a
/// device which is fast.
Outcome train(Net& model, c10::Device device, bool waits) {
  Outcome outcome;
  const auto note = [&](const Tensor& tensor) {
    outcome.numbers.push_back(device == kLazy ? test::seen(tensor.detach())
                                              : tensor.detach().clone());
  };
  at::set_num_threads(1);
  test::finish_all_streams();
  const int64_t before = device_bytes();
  if (waits) {
    test::after_operators([&] {
      test::finish_all_streams();
      outcome.most = std::max(outcome.most, device_bytes() - before);
    });
  }
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor loss = model->forward(on(device, batch(step))).square().mean();
    test::finish_all_streams();
    outcome.after_forward.push_back(device_bytes() - before);
    loss.backward();
    note(loss);
    for (const Tensor& parameter : model->parameters()) note(local_tensor(parameter.grad()));
    optimizer.step();
  }
  for (const Tensor& parameter : model->parameters()) note(local_tensor(parameter));
  test::after_operators(nullptr);
  return outcome;
}

Outcome trained(const std::string& keys, bool waits) {
  Outcome outcome;
  run_as_threads(1, [&](World world) {
    at::set_num_threads(1);
    Net model = make(kLazy);
    const auto parallel = initialize(model, Config::parse(with(keys)), test::in(world));
    EXPECT_EQ(parallel.plan().offload.empty(), keys.find("offload") == std::string::npos);
    outcome = train(model, kLazy, waits);
  });
  return outcome;
}

void expect_same(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.numbers.size(), b.numbers.size());
  for (size_t i = 0; i < a.numbers.size(); ++i) {
    EXPECT_TRUE(at::equal(a.numbers[i], b.numbers[i])) << i;
  }
}

TEST(OffloadedModel, IsTheModelWithoutItBitForBit) {
  Net plain = make(c10::kCPU);
  const Outcome expected = train(plain, c10::kCPU, false);
  expect_same(trained("", false), expected);
  for (const char* ahead : {"1MB", "3MB"}) {
    SCOPED_TRACE(ahead);
    expect_same(
        trained(R"("offload": true, "offload_ahead": ")" + std::string(ahead) + "\"", false),
        expected);
  }
}

TEST(OffloadedModel, NeverHoldsMoreThanWithoutIt) {
  const Outcome plain = trained("", true);
  for (const int64_t ahead : {1000000, 4000000}) {
    SCOPED_TRACE(ahead);
    const Outcome moved =
        trained(R"("offload": true, "offload_ahead": )" + std::to_string(ahead), true);
    EXPECT_LT(moved.most, plain.most);
    for (size_t i = 0; i < plain.after_forward.size(); ++i) {
      EXPECT_LT(moved.after_forward[i], plain.after_forward[i]);
    }
    expect_same(moved, plain);
  }
  // 256 MB are more than there is.
  const Outcome by_default = trained(R"("offload": true)", true);
  EXPECT_EQ(by_default.most, plain.most);
}

/// The largest batch, as `oslo plan` runs it.
TEST(OffloadedPlanChild, Plans) {
  const char* const keys = std::getenv("OSLO_TEST_KEYS");
  if (keys == nullptr) GTEST_SKIP() << "started by the test below";
  at::set_num_threads(1);
  Net model = make(c10::kCPU);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5));
  const Tensor x = batch(2);
  InitializeOptions how;
  how.optimizer = &optimizer;
  how.example_inputs = [&] { model->forward(x).square().mean(); };
  initialize(model, Config::parse(with(keys)), how);
}

struct Planned {
  bool fits;
  std::string output;
  std::string error;
};

Planned plan(const std::string& keys, const std::string& memory, bool json) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  setenv("OSLO_TEST_KEYS", keys.c_str(), /*overwrite=*/1);
  Words words{"plan", "-n", "1", "--memory", memory};
  if (json) words.push_back("--json");
  words.insert(words.end(), {"--", self, "--gtest_brief=1", "--gtest_filter=OffloadedPlanChild.*"});
  test::ToolProcess tool(words);
  unsetenv("OSLO_TEST_KEYS");
  const int ended = tool.finish();
  EXPECT_TRUE(ended == 0 || ended == 3) << tool.error();
  return {ended == 0, tool.output(), tool.error()};
}

/// `oslo plan --memory` answers with what stays on the device.
TEST(OffloadedModel, IsPlannedAsItIs) {
  int64_t weights = 0;
  for (const Tensor& parameter : make(c10::kCPU)->parameters()) {
    weights += static_cast<int64_t>(parameter.nbytes());
  }
  int64_t before = std::numeric_limits<int64_t>::max();
  for (const int64_t ahead : {4000000, 1000000}) {
    SCOPED_TRACE(ahead);
    const std::string keys = R"("offload": true, "offload_ahead": )" + std::to_string(ahead);
    const Outcome measured = trained(keys, true);
    const std::string printed = plan(keys, "1GB", true).output;
    const auto stage =
        nlohmann::json::parse(printed.substr(printed.find('{'))).at("memory").at("stages").at(0);
    // The loss itself, and what an operator holds meanwhile, are beside it.
    constexpr int64_t kUnseen = 1024;
    EXPECT_NEAR(stage.at("kept_least_bytes").get<int64_t>(), measured.after_forward[2], kUnseen);
    // An upper estimate, and no wild one.
    const int64_t most = measured.most + weights;
    EXPECT_GE(stage.at("least").get<int64_t>(), most);
    EXPECT_LE(stage.at("least").get<int64_t>(), most + most / 3);
    EXPECT_LT(stage.at("least"), stage.at("peak"));
    EXPECT_LT(stage.at("least").get<int64_t>(), before) << "the less ahead, the less is held";
    before = stage.at("least");
    EXPECT_EQ(stage.at("moved_bytes").get<int64_t>(),
              stage.at("kept_bytes").get<int64_t>() - stage.at("kept_least_bytes").get<int64_t>());
    EXPECT_EQ(stage.at("fits"), true);
    EXPECT_EQ(stage.at("computed_again"), 0);
  }
  const std::string keys = R"("offload": true, "offload_ahead": "1MB")";
  const Planned table = plan(keys, "1GB", false);
  EXPECT_THAT(table.output, testing::AllOf(testing::HasSubstr("moved to the host"),
                                           testing::HasSubstr("where the model is on a GPU"),
                                           testing::Not(testing::HasSubstr("again"))));
  EXPECT_THAT(table.error, testing::Not(testing::HasSubstr("does nothing")));
  EXPECT_TRUE(table.fits);
  const Planned small = plan(keys, "1MB", false);
  EXPECT_THAT(small.output, testing::HasSubstr("does not fit"));
  EXPECT_FALSE(small.fits);
}

TEST(OffloadedModel, MovesActivationsAloneUntilBackwardBegins) {
  run_as_threads(1, [&](World world) {
    at::set_num_threads(1);
    Net model = make(kLazy), plain = make(kLazy);
    initialize(model, Config::parse(with(R"("offload": true, "offload_ahead": 1)")),
               test::in(world));
    const Tensor x = test::late(batch(0));
    test::finish_all_streams();
    const Tensor loss = model->forward(x).square().mean();
    // Of each block its input, the product and the sine; and what is squared, which stays.
    EXPECT_EQ(test::undone_copies(), 3u * kLayers);
    loss.backward();
    test::finish_all_streams();
    const Tensor other = plain->forward(x).square().mean();
    EXPECT_EQ(test::undone_copies(), 0u);
  });
}

TEST(OffloadedModel, OnTheCPUItSaysThatItDoesNothing) {
  Net plain = make(c10::kCPU), model = make(c10::kCPU);
  const Outcome expected = train(plain, c10::kCPU, false);
  run_as_threads(1, [&](World world) {
    at::set_num_threads(1);
    testing::internal::CaptureStderr();
    const auto parallel =
        initialize(model, Config::parse(with(R"("offload": true)")), test::in(world));
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                testing::HasSubstr("'activation_checkpoint.offload' does nothing"));
    EXPECT_THAT(parallel.plan().to_string(), testing::HasSubstr("since the model is on the CPU"));
    EXPECT_EQ(parallel.plan().to_json()["offload"], parallel.plan().offload);
    expect_same(train(model, c10::kCPU, false), expected);
  });
}

/// Scopes of the program's own may begin before it, and end before it does.
TEST(OffloadedModel, ScopesOfTheProgramAreAskedFirst) {
  run_as_threads(1, [&](World world) {
    at::set_num_threads(1);
    Net model = make(kLazy);
    initialize(model, Config::parse(with(R"("offload": true, "offload_ahead": 1)")),
               test::in(world));
    int packed = 0;
    Tensor y;
    {
      const SavedTensorScope own([&](const Tensor&) {
        ++packed;
        return UnpackSavedTensor();
      });
      y = model->forward(test::late(batch(0)));
    }
    EXPECT_GT(packed, 0);
    test::finish_all_streams();
    const int64_t kept = device_bytes();
    const Tensor second = model->forward(test::late(batch(0)));
    test::finish_all_streams();
    EXPECT_LT(device_bytes() - kept, 4 * kRows * kWidth * 4) << "this one moved";
    (y + second).mean().backward();
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : model->parameters()) {
      gradients.push_back(test::seen(parameter.grad()));
    }
    Net plain = make(kLazy);
    for (int i = 0; i < 2; ++i) plain->forward(test::late(batch(0))).mean().backward();
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(gradients[i].allclose(test::seen(plain->parameters()[i].grad()), 1e-4, 1e-6))
          << i;
    }
  });
}

TEST(OffloadedModel, WhatEvaluationAndABackwardThatThrowsLeaveBehind) {
  const Outcome expected = trained("", true);
  run_as_threads(1, [&](World world) {
    at::set_num_threads(1);
    Net model = make(kLazy);
    initialize(model, Config::parse(with(R"("offload": true, "offload_ahead": "1MB")")),
               test::in(world));
    test::finish_all_streams();
    const int64_t before = device_bytes();
    {
      const torch::NoGradGuard guard;
      model->forward(test::late(batch(1)));
    }
    model->forward(test::late(batch(2)));  // and no backward
    {
      const Tensor y = model->forward(test::late(batch(1)));
      y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("no"); });
      EXPECT_THROW(y.sum().backward(), std::runtime_error);
    }
    test::finish_all_streams();
    EXPECT_EQ(device_bytes(), before);
    expect_same(train(model, kLazy, false), expected);
  });
}

}  // namespace
}  // namespace oslo::offloaded_model_test
