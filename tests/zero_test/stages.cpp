// What holds at every stage alike, beside data parallelism by hand: what a program reads right
// behind a step (acceptance Z13), one loss of two models (Z11), one replica (Z4), LBFGS (Z9).
#include "tests/zero_test/lora.h"

namespace oslo::zero_test {
namespace {

class EveryStage : public ::testing::TestWithParam<int> {
 protected:
  std::unique_ptr<torch::optim::Optimizer> optimizer_of(const ParallelModel& parallel,
                                                        const AdaptedGpt& net) const {
    const torch::optim::AdamWOptions options = torch::optim::AdamWOptions(0.01).weight_decay(0.1);
    if (GetParam() == 3) return std::make_unique<AdamW>(net->parameters(), options);
    return std::make_unique<ZeroOptimizer<AdamW>>(parallel, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Stages, EveryStage, ::testing::Values(1, 2, 3));

AdaptedGpt make_gpt(uint64_t seed) {
  return test::make_seeded(seed, [] { return AdaptedGpt(); });
}

AdamW adamw_by_hand(const AdaptedGpt& net) {
  return AdamW(net->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
}

TEST_P(EveryStage, ShowsFreshWeightsBehindAStepOnAllRanks) {
  run_as_threads(kReplicas, [&](World world) {
    at::set_num_threads(1);
    AdaptedGpt plain = make_gpt(11), net = make_gpt(11);
    const ParallelModel parallel = initialize(net, zero_config("", GetParam()), in(world));
    AdamW reference = adamw_by_hand(plain);
    const auto optimizer = optimizer_of(parallel, net);
    DistributedDataParallel<AdaptedGpt> ddp(net, parallel.mpu().data_group());
    for (int step = 0; step < 4; ++step) {
      reference.zero_grad();
      for (int replica = 0; replica < kReplicas; ++replica) {
        const Tensors rows = tokens_of(step, replica);
        (loss_of(plain->forward(rows[0]), rows) / kReplicas).backward();
      }
      reference.step();
      optimizer->zero_grad();
      const Tensors rows = tokens_of(step, world.rank());
      loss_of(ddp.forward(rows[0]), rows).backward();
      optimizer->step();
      // A log of norms, a decay in the loss, and what would be saved.
      Tensor decay = torch::zeros({}), expected_decay = torch::zeros({});
      const auto others = plain->named_parameters();
      for (const auto& each : net->named_parameters()) {
        const Tensor& one = others[each.key()];
        EXPECT_NEAR(each.value().detach().norm().item<double>(), one.detach().norm().item<double>(),
                    1e-6 * one.detach().norm().item<double>())
            << each.key();
        decay = decay + each.value().square().sum();
        expected_decay = expected_decay + one.square().sum();
        EXPECT_TRUE(torch::equal(full_tensor(each.value()), one)) << step << ": " << each.key();
      }
      EXPECT_NEAR(full_tensor(decay).item<double>(), expected_decay.item<double>(),
                  1e-5 * expected_decay.item<double>());
    }
  });
}

TEST_P(EveryStage, OneLossOfTwoModels) {
  run_as_threads(kReplicas, [&](World world) {
    at::set_num_threads(1);
    std::vector<AdaptedGpt> plain{make_gpt(11), make_gpt(12)}, nets{make_gpt(11), make_gpt(12)};
    std::vector<AdamW> references;
    std::vector<ParallelModel> parallel;
    std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
    std::vector<DistributedDataParallel<AdaptedGpt>> ddps;
    for (int i = 0; i < 2; ++i) {
      references.push_back(adamw_by_hand(plain[i]));
      parallel.push_back(initialize(nets[i], zero_config("", GetParam()), in(world)));
      optimizers.push_back(optimizer_of(parallel[i], nets[i]));
      ddps.emplace_back(nets[i], parallel[i].mpu().data_group());
    }
    const auto joined = [](const Tensor& one, const Tensor& other, const Tensors& rows) {
      return loss_of(one, rows) + 0.5 * torch::mse_loss(one, other) + 0.25 * loss_of(other, rows);
    };
    for (int step = 0; step < 5; ++step) {
      for (AdamW& each : references) each.zero_grad();
      for (const auto& each : optimizers) each->zero_grad();
      for (int replica = 0; replica < kReplicas; ++replica) {
        const Tensors rows = tokens_of(step, replica);
        const Tensor one = plain[0]->forward(rows[0]), other = plain[1]->forward(rows[0]);
        (joined(one, other, rows) / kReplicas).backward();
      }
      const Tensors rows = tokens_of(step, world.rank());
      const Tensor one = ddps[0].forward(rows[0]), other = ddps[1].forward(rows[0]);
      joined(one, other, rows).backward();
      for (AdamW& each : references) each.step();
      for (const auto& each : optimizers) each->step();
      for (int i = 0; i < 2; ++i) {
        const auto others = plain[i]->named_parameters();
        for (const auto& each : nets[i]->named_parameters()) {
          EXPECT_TRUE(torch::equal(full_tensor(each.value()), others[each.key()]))
              << step << ", model " << i << ": " << each.key();
        }
      }
    }
  });
}

TEST_P(EveryStage, GradientsOfOneReplicaAddUpPlainly) {
  run_as_threads(1, [&](World world) {
    AdaptedGpt plain = make_gpt(11), net = make_gpt(11);
    const ParallelModel parallel = initialize(net, zero_config("", GetParam()), in(world));
    const auto optimizer = optimizer_of(parallel, net);
    DistributedDataParallel<AdaptedGpt> ddp(net, parallel.mpu().data_group());
    constexpr int kMicro = 16;
    for (int micro = 0; micro < kMicro; ++micro) {
      const Tensors rows = tokens_of(0, 0);
      loss_of(ddp.forward(rows[0]), rows).backward();
      loss_of(plain->forward(rows[0]), rows).backward();
    }
    const auto others = plain->named_parameters();
    for (const auto& each : net->named_parameters()) {
      EXPECT_TRUE(torch::equal(each.value().grad(), others[each.key()].grad())) << each.key();
    }
    EXPECT_EQ(parallel.mpu().data_group()->ledger().total().calls, 0);
  });
}

TEST(ShardedWeights, LbfgsIsRefusedByName) {
  run_as_threads(kReplicas, [](World world) {
    AdaptedGpt net = make_gpt(11);
    const ParallelModel parallel = initialize(net, zero_config("", 3), in(world));
    DistributedDataParallel<AdaptedGpt> ddp(net, parallel.mpu().data_group());
    torch::optim::LBFGS optimizer(net->parameters(), torch::optim::LBFGSOptions(0.1));
    const Tensors rows = tokens_of(0, world.rank());
    const auto closure = [&] {
      optimizer.zero_grad();
      const Tensor loss = loss_of(ddp.forward(rows[0]), rows);
      loss.backward();
      return loss;
    };
    EXPECT_THAT(error_of([&] { optimizer.step(closure); }),
                ::testing::HasSubstr("torch::optim::LBFGS"));
  });
}

}  // namespace
}  // namespace oslo::zero_test
