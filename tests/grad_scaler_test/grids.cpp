// One verdict a step for the program: tensor, data and pipeline ranks, several models.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "checkpoint/resume/scheduler_steps.h"
#include "tests/grad_scaler_test/by_hand.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline_parity::Grid;
using pipeline_parity::Tensors;
using ::testing::HasSubstr;
using torch::Tensor;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Two models of one program, each with an optimizer and a schedule of its learning rate.
struct Program {
  torch::nn::Sequential front{nullptr}, back{nullptr};
  std::vector<std::unique_ptr<torch::optim::AdamW>> optimizers = {};
  std::vector<std::unique_ptr<torch::optim::StepLR>> schedules = {};

  Program() {
    const auto make = [](int64_t in, int64_t out) {
      return torch::nn::Sequential(torch::nn::Linear(in, 7), torch::nn::Tanh(),
                                   torch::nn::Linear(7, 5), torch::nn::Tanh(),
                                   torch::nn::Linear(5, out));
    };
    front = make_seeded(3, [&] { return make(3, 5); });
    back = make_seeded(4, [&] { return make(5, 2); });
    for (torch::nn::Sequential model : {front, back}) {
      model->to(torch::kDouble);
      const auto options = torch::optim::AdamWOptions(1e-2);
      optimizers.push_back(std::make_unique<torch::optim::AdamW>(model->parameters(), options));
      schedules.push_back(std::make_unique<torch::optim::StepLR>(*optimizers.back(), 1, 0.9));
    }
  }

  /// By ZeRO's stages 1 and 2.
  void share_out(const std::vector<ParallelModel*>& models) {
    for (size_t i = 0; i < 2; ++i) {
      optimizers[i] = std::make_unique<ZeroOptimizer<torch::optim::AdamW>>(
          *models[i], torch::optim::AdamWOptions(1e-2));
      schedules[i] = std::make_unique<torch::optim::StepLR>(*optimizers[i], 1, 0.9);
    }
  }

  Tensors parameters() const {
    Tensors all = front->parameters();
    for (const Tensor& each : back->parameters()) all.push_back(each);
    return all;
  }
  Tensor loss(const Tensors& micro) {
    return torch::mse_loss(back->forward(front->forward(micro[0])), micro[1]);
  }
  void zero_grad() {
    for (auto& optimizer : optimizers) optimizer->zero_grad();
  }
};

Tensors batch_of(int step) {
  return {torch::sin(torch::arange(66, torch::kDouble) * 0.9 + step).view({22, 3}),
          torch::cos(torch::arange(44, torch::kDouble) * 0.4 + step).view({22, 2})};
}

Tensors part_of(const Tensors& batch, const MPU& mpu) {
  Tensors part;
  for (const Tensor& each : batch) {
    part.push_back(each.tensor_split(mpu.size("data"))[mpu.rank("data")]);
  }
  return part;
}

/// One element of one gradient that this rank has.
void overflow_one(const Tensors& parameters) {
  const torch::NoGradGuard no_grad;
  for (const Tensor& parameter : parameters) {
    if (!parameter.grad().defined() || parameter.grad().numel() == 0) continue;
    local_tensor(parameter.grad()).view({-1})[0].fill_(std::numeric_limits<double>::infinity());
    return;
  }
  ADD_FAILURE() << "this rank has no gradient";
}

/// How often each parameter was stepped, and what its schedule came to.
void expect_steps(const Program& program, const Program& plain, int64_t steps) {
  const auto rate_of = [](const Program& of, size_t i) {
    return of.optimizers[i]->param_groups()[0].options().get_lr();
  };
  for (size_t i = 0; i < 2; ++i) {
    size_t stepped = 0;
    for (const auto& [_, state] : program.optimizers[i]->state()) {
      EXPECT_EQ(static_cast<torch::optim::AdamWParamState&>(*state).step(), steps);
      ++stepped;
    }
    EXPECT_GT(stepped, 0u);
    EXPECT_EQ(rate_of(program, i), rate_of(plain, i));
    EXPECT_EQ(SchedulerSteps::of(*program.schedules[i]), steps);
  }
}

enum class Way { schedule, ddp, unreduced };

Config config_of(const Grid& grid, int zero) {
  std::string text = pipeline_parity::config_of(grid);
  if (zero == 0) return Config::parse(text);
  const auto key = c10::str(R"("zero_optimization": {"enabled": true, "stage": )", zero, "}, ");
  return Config::parse(text.insert(1, key));
}

/// Five steps, the second of which overflows on `bad` alone: in a gradient element, or by the loss.
/// `zero`: ZeRO's stage.
void expect_one_verdict(const Grid& grid, Way way, int bad, bool by_loss, bool clips,
                        int zero = 0) {
  const std::string what =
      c10::str(grid.name(), ", rank ", bad, by_loss ? " has a NaN loss" : " overflows",
               clips ? ", with clipping" : "", ", ZeRO ", zero);
  run_as_threads(grid.size(), [&](World world) {
    SCOPED_TRACE(what);
    at::set_num_threads(1);
    Program plain, program;
    const Config config = config_of(grid, zero);
    ParallelModel a = initialize(program.front, config, in(world));
    ParallelModel b = initialize(program.back, config, in(world));
    if (zero == 1 || zero == 2) program.share_out({&a, &b});
    const MPU& mpu = a.mpu();
    GradScaler scaler({&a, &b}, GradScalerOptions().init_scale(8).growth_interval(3));
    ScaledByHand by_hand(8, 3);
    std::optional<PipelineSchedule> pipeline;
    std::optional<DistributedDataParallel<torch::nn::Sequential>> front, back;
    if (way == Way::schedule) {
      pipeline.emplace(std::vector<ParallelModel>{a, b}, PipelineOptions().num_microbatches(3));
    } else if (way == Way::ddp) {
      front.emplace(program.front, mpu.get_data_parallel_group());
      back.emplace(program.back, mpu.get_data_parallel_group());
    }
    int64_t taken = 0;
    for (int step = 0; step < 5; ++step) {
      program.zero_grad();
      plain.zero_grad();
      const double factor = by_loss && step == 1 && world.rank() == bad ? kNan : 1;
      const Tensors batch = batch_of(step), part = part_of(batch, mpu);
      if (way == Way::schedule) {
        pipeline->forward_backward_step(part, [&](const Tensors& micro) {
          return scaler.scale(program.loss(micro) * torch::full({}, factor, torch::kDouble));
        });
      } else if (way == Way::ddp) {
        const Tensor out = back->forward(front->forward(part[0]));
        scaler.scale(torch::mse_loss(out, part[1]) * factor).backward();
      } else {  // each replica has the whole batch, so that gradients are equal without exchange
        scaler.scale(program.loss(batch) * factor).backward();
      }
      if (!by_loss && step == 1 && world.rank() == bad) overflow_one(program.parameters());

      (plain.loss(batch) * by_hand.scale()).backward();
      const bool finite = step != 1;
      EXPECT_TRUE(by_hand.unscale(plain.parameters()));
      if (clips) {
        for (auto& optimizer : program.optimizers) scaler.unscale_(*optimizer);
        const double norm = clip_grad_norm_(program.parameters(), 0.05);
        const double expected = torch::nn::utils::clip_grad_norm_(plain.parameters(), 0.05);
        const bool as_expected = finite ? std::abs(norm - expected) < 1e-9 : !std::isfinite(norm);
        // An element behind the exchange is in the norm of its replica alone.
        EXPECT_TRUE(as_expected || (!finite && world.rank() != bad)) << norm;
      }
      for (size_t i = 0; i < 2; ++i) {
        if (scaler.step(*program.optimizers[i])) {
          program.schedules[i]->step();
          taken += i;
        }
        if (finite) plain.optimizers[i]->step();
        if (finite) plain.schedules[i]->step();
      }
      scaler.update();
      by_hand.update(finite);
      EXPECT_EQ(scaler.get_scale(), by_hand.scale()) << step;
      EXPECT_EQ(scaler.get_scale(), step < 1 ? 8 : step < 4 ? 4 : 8);
      EXPECT_EQ(taken, step + (step < 1)) << "of the steps up to " << step;
    }
    expect_steps(program, plain, 4);
    parity::expect_weights(*program.front, *plain.front);
    parity::expect_weights(*program.back, *plain.back);
    EXPECT_EQ(scaler.ledger().total("all_reduce").calls, world.size() > 1 ? 5 : 0);
    EXPECT_EQ(scaler.ledger().total().calls, scaler.ledger().total("all_reduce").calls);
  });
}

TEST(GradScalerGrids, AnOverflowOfOneRankIsEverybodys) {
  expect_one_verdict({2, 2, 2}, Way::schedule, 3, false, true);
  expect_one_verdict({2, 2, 2}, Way::schedule, 6, false, false);
  expect_one_verdict({1, 3, 1}, Way::schedule, 2, false, true);
  expect_one_verdict({2, 2, 1}, Way::ddp, 3, false, true);
  expect_one_verdict({3, 1, 1}, Way::unreduced, 2, false, true);
  expect_one_verdict({1, 1, 1}, Way::unreduced, 0, false, true);
}

TEST(GradScalerGrids, ANanInTheLossOfOneRankIsEverybodys) {
  expect_one_verdict({2, 1, 1}, Way::unreduced, 1, true, false);
  expect_one_verdict({2, 2, 1}, Way::ddp, 1, true, true);
  expect_one_verdict({2, 1, 2}, Way::schedule, 3, true, true);  // of the last stage
}

/// acceptance S1 to S3, whose gradients are on one replica each, or in parts on all
TEST(GradScalerGrids, AreOneVerdictWithZero) {
  for (const int zero : {1, 2, 3}) {
    expect_one_verdict({2, 2, 2}, Way::schedule, 3, false, false, zero);
    expect_one_verdict({2, 2, 2}, Way::schedule, 6, false, true, zero);
    expect_one_verdict({2, 2, 1}, Way::ddp, 3, false, true, zero);
    expect_one_verdict({2, 1, 1}, Way::ddp, 1, true, true, zero);
    expect_one_verdict({2, 1, 2}, Way::schedule, 3, true, true, zero);
  }
}

/// What one rank cannot go on with is thrown on all of them.
TEST(GradScalerGrids, RefusalsAreThrownOnEveryRank) {
  run_as_threads(3, [](World world) {
    at::set_num_threads(1);
    const auto make = [] { return torch::nn::Linear(3, 5); };
    torch::nn::Linear model = make_seeded(3, make), other = make_seeded(4, make);
    const Config config = Config::parse(R"({"model_parallelism": {"tensor_parallel_size": 3}})");
    const ParallelModel parallel = initialize(model, config, in(world));
    initialize(other, config, in(world));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    std::vector<Tensor> both = model->parameters();
    both.push_back(other->weight);
    torch::optim::SGD foreign(both, 0.1);
    GradScaler scaler(parallel);
    const auto backward = [&] {
      optimizer.zero_grad();
      scaler.scale(model->forward(torch::ones({2, 3})).sum()).backward();
    };
    backward();
    EXPECT_THAT(error_of([&] { scaler.step(foreign); }), HasSubstr("parameter 2 of group 0"));
    EXPECT_EQ(scaler.ledger().total().calls, 0);
    if (world.rank() == 1) scaler.update(16);
    EXPECT_THAT(error_of([&] { scaler.step(optimizer); }),
                HasSubstr("ranks have scales between 16 and 65536"));
    scaler.update(16);
    optimizer.zero_grad();
    EXPECT_THAT(error_of([&] { scaler.step(optimizer); }),
                HasSubstr("no inf checks were recorded"));
    backward();
    if (world.rank() == 2) {
      model->bias.mutable_grad() = torch::ones_like(local_tensor(model->bias)).to(torch::kHalf);
    }
    EXPECT_THAT(error_of([&] { scaler.step(optimizer); }),
                HasSubstr(world.rank() == 2 ? "that of bias" : "rank 2 has some"));
  });
}

}  // namespace
}  // namespace oslo::test
