// The measured peak of a training step stays within the budget (acceptance A4).
#include <gmock/gmock.h>

#include <functional>
#include <limits>

#include "oslo_cpp/oslo.h"
#include "tests/models/unet.h"
#include "tests/recomputation_test/gpt2.h"
#include "tests/support/counted_memory.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"

namespace oslo::test {
namespace {

using torch::Tensor;

/// A model, and the loss of a forward.
struct Program {
  std::shared_ptr<torch::nn::Module> model;
  std::function<Tensor()> loss;
};

Program gpt2() {
  models::GPT2Options options = small_gpt2(12);
  options.hidden = 33;
  models::GPT2 model(options);
  const Tensor tokens = torch::arange(7 * 29).remainder(19).view({7, 29});
  return {model.ptr(),
          [model, tokens]() mutable { return loss_of_tokens(model->forward(tokens), tokens); }};
}

Program convolutions() {
  torch::nn::Sequential model;
  int64_t channels = 3;
  for (int layer = 0; layer < 7; ++layer) {
    model->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, 11, 3).padding(1)));
    model->push_back(torch::nn::BatchNorm2d(11));
    model->push_back(torch::nn::ReLU());
    channels = 11;
  }
  const Tensor images = torch::linspace(-1, 1, 5 * 3 * 19 * 17).view({5, 3, 19, 17});
  return {model.ptr(),
          [model, images]() mutable { return model->forward(images).square().mean(); }};
}

Program unet() {
  models::unet::UNet model;
  const Tensor images = torch::linspace(-1, 1, 3 * 2 * 24 * 24).view({3, 2, 24, 24});
  const Tensor condition = torch::linspace(-1, 1, 3 * 6).view({3, 6});
  return {model.ptr(), [model, images, condition]() mutable {
            return model->forward(images, condition).square().mean();
          }};
}

/// What three steps with AdamW show.
struct Steps {
  std::vector<int64_t> peaks;
  std::vector<Tensor> weights;
  int kept = 0;
  PlanMemory memory;
};

Steps train(const std::function<Program()>& make, const std::string& config, bool example,
            int micro_batches = 1, int without_step = 0, bool sgd = false) {
  Steps steps;
  run_as_threads(1, [&](World world) {
    at::set_num_threads(1);
    CountedMemory memory;
    torch::manual_seed(5);
    const Program program = make();
    InitializeOptions how = in(world);
    if (example) how.example_inputs = [&] { program.loss(); };
    const ParallelModel parallel = initialize(program.model, Config::parse(config), how);
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (sgd) {
      optimizer = std::make_unique<torch::optim::SGD>(program.model->parameters(),
                                                      torch::optim::SGDOptions(1e-3).momentum(0.9));
    } else {
      optimizer = std::make_unique<torch::optim::AdamW>(program.model->parameters(), 1e-3);
    }
    for (int step = 0; step < 4 + without_step; ++step) {
      memory.take_peak();
      optimizer->zero_grad();
      for (int i = 0; i < micro_batches; ++i) program.loss().backward();
      if (step >= without_step) optimizer->step();
      steps.peaks.push_back(memory.take_peak());
    }
    const Plan plan = parallel.plan();
    for (const PlanSegment& each : plan.recomputed) steps.kept += each.kept ? 1 : 0;
    steps.memory = plan.memory;
    for (const Tensor& weight : program.model->parameters()) {
      steps.weights.push_back(local_tensor(weight).detach().clone());
    }
  });
  return steps;
}

int64_t peak(const Steps& steps) {
  return *std::max_element(steps.peaks.begin(), steps.peaks.end());
}

std::string within(int64_t bytes) {
  return c10::str(R"({"activation_checkpoint": {"enabled": true, "memory": )", bytes, "}}");
}

/// The number in "the least is 123 bytes".
int64_t least_in(const std::string& message) {
  const std::string before = "the least is ";
  const size_t at = message.find(before);
  return at == std::string::npos ? 0 : std::stoll(message.substr(at + before.size()));
}

/// What an `Error` says; empty where none was thrown.
std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& refusal) {
    return refusal.what();
  }
  return {};
}

class Budgets : public testing::TestWithParam<std::pair<const char*, Program (*)()>> {};

TEST_P(Budgets, AreKeptAndThePeakDoesNotRiseWhenTheyFall) {
  const auto make = GetParam().second;
  const Steps plain = train(make, R"({"model_parallelism": {"enable": false}})", false);
  const int64_t all = peak(plain);
  for (const bool example : {false, true}) {
    SCOPED_TRACE(example);
    int64_t before = std::numeric_limits<int64_t>::max();
    int refused = 0, kept = 0;
    for (const int percent : {110, 100, 90, 75, 60, 50, 35, 25}) {
      const int64_t budget = all * percent / 100;
      SCOPED_TRACE(c10::str(percent, " %: ", budget));
      Steps steps;
      const std::string error = refusal_of([&] { steps = train(make, within(budget), example); });
      if (!error.empty()) {
        ++refused;
        const int64_t least = least_in(error);
        EXPECT_GT(least, budget) << error;
        // The number that it tells is enough. Without an example the first one is of the model and
        // its optimizer alone, and the first step tells another.
        const std::string again = refusal_of([&] { steps = train(make, within(least), example); });
        EXPECT_TRUE(again.empty() || !example) << again;
        const int64_t enough = again.empty() ? least : least_in(again);
        if (!again.empty()) steps = train(make, within(enough), example);
        EXPECT_LE(peak(steps), enough);
        continue;
      }
      EXPECT_EQ(refused, 0) << "a larger one was refused";
      EXPECT_LE(peak(steps), budget);
      EXPECT_LE(peak(steps), before);
      EXPECT_GT(steps.memory.peak, 0);
      EXPECT_EQ(steps.memory.budget, budget);
      before = peak(steps);
      kept += steps.kept;
      for (size_t i = 0; i < plain.weights.size(); ++i) {
        EXPECT_TRUE(steps.weights[i].equal(plain.weights[i])) << i;
      }
    }
    EXPECT_GT(kept, 0);
    EXPECT_GT(refused, 0);
  }
}

/// Accumulated gradients, first steps that a scaler skips, an optimizer that writes by `data()`.
TEST_P(Budgets, AreKeptInOtherLoops) {
  const auto make = GetParam().second;
  struct Loop {
    int micro_batches, without_step;
    bool sgd;
  };
  for (const Loop loop : {Loop{3, 0, false}, Loop{1, 2, false}, Loop{1, 0, true}}) {
    const auto run = [&](const std::string& config) {
      return train(make, config, false, loop.micro_batches, loop.without_step, loop.sgd);
    };
    const int64_t all = peak(run(R"({"model_parallelism": {"enable": false}})"));
    int kept = 0;
    for (const int percent : {110, 100, 90, 75, 60}) {
      const int64_t budget = all * percent / 100;
      SCOPED_TRACE(c10::str(loop.micro_batches, " micro-batches, ", loop.without_step,
                            " without a step, SGD ", loop.sgd, ", ", percent, " %: ", budget));
      Steps steps;
      if (!refusal_of([&] { steps = run(within(budget)); }).empty()) continue;
      EXPECT_LE(peak(steps), budget);
      kept += steps.kept;
    }
    EXPECT_GT(kept, 0);
  }
}

/// Nothing of a model with a budget is left when the program lets go of it.
TEST(Budget, GoesWithItsModel) {
  run_as_threads(1, [](World world) {
    at::set_num_threads(1);
    CountedMemory memory;
    for (int round = 0; round < 2; ++round) {
      {
        const Program program = convolutions();
        const auto parallel =
            initialize(program.model, Config::parse(within(int64_t{1} << 40)), in(world));
        for (int step = 0; step < 3; ++step) program.loss().backward();
        EXPECT_GT(memory.bytes(), 20000);
      }
      EXPECT_LT(memory.bytes(), 2000) << round;
    }
  });
}

/// Casts of weights count: until backward, or those that masters keep.
TEST(Budget, IsKeptInMixedPrecision) {
  for (const char* more : {"", R"("master_weights": true, )"}) {
    const auto config = [&](const std::string& memory) {
      return c10::str(R"({"amp": {"enabled": true}, )", more,
                      R"("activation_checkpoint": {"enabled": )", memory, "}}");
    };
    const Steps plain = train(&gpt2, config("false"), false);
    const int64_t all = peak(plain);
    int64_t before = std::numeric_limits<int64_t>::max();
    int kept = 0, runs = 0;
    for (const int percent : {110, 100, 90, 80, 70}) {
      const int64_t budget = all * percent / 100;
      SCOPED_TRACE(c10::str(more, percent, " %: ", budget));
      Steps steps;
      const std::string memory = c10::str("true, \"memory\": ", budget);
      if (!refusal_of([&] { steps = train(&gpt2, config(memory), false); }).empty()) continue;
      ++runs;
      EXPECT_LE(peak(steps), budget);
      EXPECT_LE(peak(steps), before);
      before = peak(steps);
      kept += steps.kept;
      for (size_t i = 0; i < plain.weights.size(); ++i) {
        EXPECT_TRUE(steps.weights[i].equal(plain.weights[i])) << i;
      }
    }
    EXPECT_GT(kept, 0);
    EXPECT_GT(runs, 2);
  }
}

TEST_P(Budgets, AreRefusedBeforeTheFirstStepByAnExample) {
  const auto make = GetParam().second;
  const int64_t least = [&] {
    return least_in(error_of([&] { train(make, within(1000), true); }));
  }();
  ASSERT_GT(least, 1000);
  const Steps all = train(make, R"({"activation_checkpoint": {"enabled": true}})", false);
  // The estimate is an upper one, and not far.
  EXPECT_GE(least, peak(all));
  EXPECT_LE(static_cast<double>(least), 1.25 * static_cast<double>(peak(all)));
  EXPECT_THAT(error_of([&] { train(make, within(least - 1), true); }),
              testing::AllOf(testing::HasSubstr("initialize: the budget of"),
                             testing::HasSubstr(std::to_string(least))));
  EXPECT_LE(peak(train(make, within(least), true)), least);
}

INSTANTIATE_TEST_SUITE_P(, Budgets,
                         testing::Values(std::make_pair("GPT2", &gpt2),
                                         std::make_pair("Convolutions", &convolutions),
                                         std::make_pair("UNet", &unet)),
                         [](const auto& info) { return std::string(info.param.first); });

}  // namespace
}  // namespace oslo::test
