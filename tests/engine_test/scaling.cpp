// float16: the engine scales, and leaves out the steps in which gradients overflow.
#include <limits>

#include "tests/engine_test/cases.h"
#include "tests/grad_scaler_test/by_hand.h"
#include "tests/support/under_autocast.h"

namespace oslo::test::engines {
namespace {

constexpr int kSteps = 7;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The second batch of a step, which is where the last data rank alone overflows.
bool overflows(int step) {
  return step == 2 || step == 3;
}

Batches float_batches() {
  Batches batches = make_batches(std::vector<int64_t>(2 * kSteps, 6));
  for (Example& batch : batches) {
    batch = {batch.data.to(torch::kFloat), batch.target.to(torch::kFloat)};
  }
  return batches;
}

torch::nn::Sequential float_net() {
  torch::nn::Sequential net = make_net();
  net->to(torch::kFloat);
  return net;
}

struct ByHand {
  std::vector<std::vector<Tensor>> weights;  ///< behind each step
  std::vector<double> scales;
};

/// Accumulates over two batches, scales, unscales, clips.
ByHand train_by_hand() {
  torch::nn::Sequential net = float_net();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  ScaledByHand scaled(64, 3);
  const Batches batches = float_batches();
  ByHand run;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int i = 0; i < 2; ++i) {
      const Example& batch = batches[2 * step + i];
      Tensor loss;
      {
        const UnderAutocast guard(torch::kHalf);
        loss = torch::mse_loss(net->forward(batch.data), batch.target);
      }
      const double factor = i == 1 && overflows(step) ? kInfinity : 1;
      (loss * factor / 2 * scaled.scale()).backward();
    }
    const bool finite = scaled.unscale(net->parameters());
    torch::nn::utils::clip_grad_norm_(net->parameters(), kClip);
    if (finite) optimizer.step();
    scaled.update(finite);
    std::vector<Tensor>& now = run.weights.emplace_back();
    for (const Tensor& weight : net->parameters()) now.push_back(weight.detach().clone());
    run.scales.push_back(scaled.scale());
  }
  return run;
}

constexpr const char* kHalf = R"(, "gradient_accumulation": 2, "clip_grad_norm": 0.05,
    "fp16": {"mode": "torch", "init_scale": 64, "growth_interval": 3})";

/// `relative`: of one rank what the norm's sum in another order comes to, in float; of several what
/// roundings of halves do.
void expect_scaled(const Grid& grid, bool by_schedule, double relative) {
  SCOPED_TRACE(grid.name());
  const ByHand by_hand = train_by_hand();
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    torch::nn::Sequential model = float_net();
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
    double factor = 1;
    const auto criterion = [&factor](const Tensor& output, const Tensor& label) {
      return torch::mse_loss(output, label) * factor;
    };
    const Batches batches = float_batches();
    auto [engine, train_loader] = oslo::initialize(
        model, optimizer, criterion, batches, Config::parse(engine_config(grid, kHalf)), in(world));
    ASSERT_NE(engine.scaler(), nullptr);
    oslo::PipelineSchedule schedule(engine, 2);
    const MPU& mpu = engine.parallel().mpu();
    const bool last_replica = mpu.rank("data") + 1 == mpu.size("data");
    auto data_iterator = train_loader.begin();
    for (int i = 0; i < 2 * kSteps; ++i) {
      const int step = i / 2;
      engine.zero_grad();
      factor = i % 2 == 1 && overflows(step) && last_replica ? kInfinity : 1;
      if (by_schedule) {
        const auto [output, label, loss] = schedule.forward_backward_step(engine, data_iterator);
        EXPECT_TRUE(factor != 1 || loss.template item<double>() < 2);  // not scaled
      } else {
        const Example& batch = *data_iterator;
        engine.backward(engine.criterion(engine(batch.data), batch.target));
        ++data_iterator;
      }
      EXPECT_EQ(engine.step(), i % 2 == 1 && !overflows(step)) << i;
      if (i % 2 == 0) continue;
      EXPECT_EQ(engine.scaler()->get_scale(), by_hand.scales[step]);
      size_t number = 0;
      for (const Tensor& weight : model->parameters()) {
        const Tensor& expected = by_hand.weights[step][number++];
        if (!is_here(weight)) continue;
        parity::expect_close(pipeline_parity::whole_here(weight.detach()), expected,
                             c10::str("weight ", number, " behind step ", step),
                             {relative, relative / 10});
      }
    }
  });
}

TEST(EngineScaling, IsThatOfALoopByHand) {
  expect_scaled({1, 1, 1}, false, 1e-6);
  expect_scaled({1, 1, 1}, true, 2e-3);
}

TEST(EngineScaling, OneRanksOverflowLeavesTheStepOutOnAll) {
  expect_scaled({2, 1, 1}, false, 2e-3);
  expect_scaled({2, 1, 1}, true, 2e-3);
  expect_scaled({1, 2, 1}, false, 2e-3);
  expect_scaled({1, 1, 2}, true, 2e-3);
}

/// Under autocast losses are placed values.
TEST(EngineScaling, ACountedLossIsTheMeanOverAllThatCounts) {
  const auto to_float = [](Batches batches) {
    for (Example& batch : batches) {
      batch = {batch.data.to(torch::kFloat), batch.target.to(torch::kFloat)};
    }
    return batches;
  };
  const Batches batches = to_float(make_batches({7, 4}));
  torch::nn::Sequential plain = float_net();
  torch::optim::SGD by_hand = make_optimizer(plain);
  Tensor sum = torch::zeros({});
  double count = 0;
  for (const Example& batch : batches) {
    const UnderAutocast guard(torch::kHalf);
    const CountedLoss loss =
        counted_loss(plain->forward(batch.data).to(torch::kFloat), batch.target);
    sum = sum + loss.sum;
    count += loss.count.value();
  }
  (sum / count).backward();
  by_hand.step();
  for (const Grid& grid : {Grid{1, 1, 1}, Grid{2, 1, 1}, Grid{1, 2, 1}, Grid{1, 1, 2}}) {
    SCOPED_TRACE(grid.name());
    run_as_threads(grid.size(), [&](World world) {
      at::set_num_threads(1);
      torch::nn::Sequential model = float_net();
      torch::optim::SGD optimizer = make_optimizer(model);
      const auto criterion = [](const Tensor& output, const Tensor& label) {
        return counted_loss(output.to(torch::kFloat), label);
      };
      auto [engine, loader] = oslo::initialize(
          model, optimizer, criterion, batches,
          Config::parse(
              engine_config(grid, R"(, "gradient_accumulation": 2, "fp16": {"init_scale": 64})")),
          in(world));
      oslo::PipelineSchedule schedule(engine, 2);
      for (auto at = loader.begin(); at != loader.end();) {
        engine.zero_grad();
        if (grid.pipeline > 1) {
          schedule.forward_backward_step(engine, at);
        } else {
          engine.backward(engine.criterion(engine(at->data), at->target));
          ++at;
        }
        engine.step();
      }
      parity::for_each_parameter(
          *model, *plain, [](const std::string& name, const Tensor& mine, const Tensor& expected) {
            if (!is_here(mine)) return;
            parity::expect_close(pipeline_parity::whole_here(mine.detach()), expected.detach(),
                                 name, {2e-3, 2e-4});
          });
    });
  }
}

TEST(EngineScaling, ASkippedStepIsCounted) {
  torch::nn::Sequential model = float_net();
  torch::optim::AdamW optimizer(model->parameters());
  const auto endless = [](const Tensor& output, const Tensor&) {
    return output.sum() * std::numeric_limits<float>::infinity();
  };
  auto [engine, loader] = oslo::initialize(
      model, optimizer, endless, float_batches(),
      Config::parse(R"({"parallel": {}, "fp16": {"mode": "torch"}})"), in(World::alone()));
  const Tensor before = model->parameters().front().detach().clone();
  for (auto& batch : loader) {
    engine.zero_grad();
    engine.backward(engine.criterion(engine(batch.data), batch.target));
    EXPECT_FALSE(engine.step());
  }
  EXPECT_EQ(engine.scaler()->get_scale(), 65536.0 / (1 << (2 * kSteps)));
  EXPECT_TRUE(optimizer.state().empty());
  EXPECT_TRUE(torch::equal(full_tensor(model->parameters().front()).detach(), before));
}

TEST(EngineScaling, Bfloat16NeedsNone) {
  torch::nn::Sequential model = float_net();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [engine, loader] = oslo::initialize(
      model, optimizer, mean_loss, float_batches(),
      Config::parse(R"({"parallel": {}, "amp": {"enabled": true}})"), in(World::alone()));
  EXPECT_EQ(engine.scaler(), nullptr);
}

}  // namespace
}  // namespace oslo::test::engines
