// A rank that is late anywhere in a step changes no bit of what ranks compute: acceptance K13.
#include <chrono>
#include <thread>

#include "tests/zero_test/lora.h"

namespace oslo::zero_test {
namespace {

enum Place { before_forward, in_forward, before_backward, in_backward, before_step, kPlaces };
constexpr int kDelayedSteps = kReplicas * kPlaces;

/// Losses of each rank's steps, in each of which `late` says where which rank is 100 ms late.
std::vector<std::vector<double>> losses(
    int stage, const std::string& keys,
    const std::function<bool(int step, int rank, Place place)>& late) {
  std::vector<std::vector<double>> all(kReplicas);
  run_as_threads(kReplicas, [&](World world) {
    at::set_num_threads(1);
    AdaptedGpt net = test::make_seeded(11, [] { return AdaptedGpt(); });
    const ParallelModel parallel = initialize(net, zero_config("", stage, 0, keys), in(world));
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (stage == 3) {
      optimizer = std::make_unique<AdamW>(net->parameters(), torch::optim::AdamWOptions(0.01));
    } else {
      optimizer =
          std::make_unique<ZeroOptimizer<AdamW>>(parallel, torch::optim::AdamWOptions(0.01));
    }
    DistributedDataParallel<AdaptedGpt> ddp(net, parallel.mpu().data_group(),
                                            DDPOptions().bucket_cap_mb(1e-3));
    int step = 0;
    const auto at = [&](Place place) {
      if (late(step, world.rank(), place)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    };
    net->around = [&](int64_t i, const Tensor& x) {
      if (i == 1) at(in_forward);
      const Tensor y = net->block(i, x);
      if (i == 1) y.register_hook([&](const Tensor&) { at(in_backward); });
      return y;
    };
    for (; step < kDelayedSteps; ++step) {
      const Tensors rows = tokens_of(step, world.rank());
      optimizer->zero_grad();
      at(before_forward);
      const Tensor loss = loss_of(ddp.forward(rows[0]), rows);
      at(before_backward);
      loss.backward();
      at(before_step);
      optimizer->step();
      all[world.rank()].push_back(loss.item<double>());
    }
  });
  return all;
}

class Delays : public ::testing::TestWithParam<std::pair<int, std::string>> {};
INSTANTIATE_TEST_SUITE_P(StagesAndKeys, Delays,
                         ::testing::Values(std::pair(1, ""), std::pair(2, ""),
                                           std::pair(3, kGathered), std::pair(3, "")));

TEST_P(Delays, ChangeNoBit) {
  const auto& [stage, keys] = GetParam();
  const auto in_time = losses(stage, keys, [](int, int, Place) { return false; });
  const auto delayed = losses(stage, keys, [](int step, int rank, Place place) {
    return place == step % kPlaces && rank == step / kPlaces;
  });
  EXPECT_EQ(delayed, in_time);
  EXPECT_LT(in_time[0].back(), in_time[0].front());
}

}  // namespace
}  // namespace oslo::zero_test
