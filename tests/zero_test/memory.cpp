// Bytes that LibTorch's allocator has handed out for states, of all ranks together.
#include <utility>

#include "tests/support/counted_memory.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

class ZeroMemory : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ZeroMemory, ::testing::Values(2, 4));

TEST_P(ZeroMemory, StatesAreThereOnce) {
  const int ranks = GetParam();
  const auto bytes_of_states = [&](bool shared) {
    test::CountedMemory memory;
    int64_t before = 0, after = 0;
    run_as_threads(ranks, [&](World world) {
      at::set_num_threads(1);
      torch::nn::Sequential net = test::make_seeded(1, [] {
        return torch::nn::Sequential(torch::nn::Linear(31, 17), torch::nn::Linear(17, 5));
      });
      ParallelModel parallel = initialize(net, zero_config(), in(world));
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      if (shared) {
        optimizer = std::make_unique<ZeroOptimizer<AdamW>>(parallel, torch::optim::AdamWOptions(1));
      } else {
        optimizer = std::make_unique<AdamW>(net->parameters(), torch::optim::AdamWOptions(1));
      }
      net->forward(torch::ones({3, 31})).sum().backward();
      world.barrier();
      if (world.rank() == 0) before = memory.bytes();
      world.barrier();
      optimizer->step();
      world.barrier();
      if (world.rank() == 0) after = memory.bytes();
      world.barrier();
    });
    return after - before;
  };
  const int64_t elements = 31 * 17 + 17 + 17 * 5 + 5;
  EXPECT_EQ(bytes_of_states(false), ranks * 2 * 4 * elements);
  EXPECT_EQ(bytes_of_states(true), 2 * 4 * elements);
}

/// Eight layers, a bucket each: behind backward a gradient is there once, of all ranks together,
/// and in it a rank has no more whole ones than are under way.
TEST_P(ZeroMemory, WholeGradientsAreGivenBackAsBucketsAreFull) {
  const int ranks = GetParam();
  constexpr int64_t kWidth = 256, kLayers = 8, kLayer = 4 * kWidth * kWidth;
  for (const bool optimizer_first : {true, false}) {
    test::CountedMemory memory;
    int64_t before = 0, after = 0, most = 0;
    run_as_threads(ranks, [&](World world) {
      at::set_num_threads(1);
      torch::nn::Sequential net = test::make_seeded(1, [] {
        torch::nn::Sequential layers;
        for (int64_t i = 0; i < kLayers; ++i) {
          layers->push_back(
              torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
        }
        return layers;
      });
      ParallelModel parallel = initialize(net, zero_config("", 2), in(world));
      using Ddp = DistributedDataParallel<torch::nn::Sequential>;
      const auto options = DDPOptions().bucket_cap_mb(0.01);
      std::unique_ptr<Ddp> ddp;
      if (!optimizer_first) ddp = std::make_unique<Ddp>(net, parallel.mpu().data_group(), options);
      ZeroOptimizer<AdamW> optimizer(parallel, torch::optim::AdamWOptions(1));
      if (optimizer_first) ddp = std::make_unique<Ddp>(net, parallel.mpu().data_group(), options);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        Tensor loss = ddp->forward(torch::ones({1, kWidth})).sum();
        world.barrier();
        if (world.rank() == 0) before = memory.bytes(), memory.take_peak();
        world.barrier();
        loss.backward();
        loss.reset();
        world.barrier();
        if (world.rank() == 0) after = memory.bytes(), most = memory.take_peak();
        world.barrier();
        optimizer.step();
      }
    });
    // The activations of one row, which backward lets go of, are less than a hundredth of a layer
    // each.
    EXPECT_NEAR(after - before, kLayers * kLayer, ranks * kLayer / 4);
    EXPECT_LE(most - before, kLayers * kLayer + ranks * 5 * kLayer);
  }
}

/// The table of docs/zero.md: bytes of all ranks together behind `initialize`, backward and step,
/// each less what was there before, and what the formula says, for parameters of so many bytes.
class BytesByStage : public ::testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(StageAndRanks, BytesByStage,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3),
                                            ::testing::Values(2, 4)));

TEST_P(BytesByStage, AreThoseOfTheFormula) {
  const auto& [stage, ranks] = GetParam();
  constexpr int64_t kWidth = 512, kLayers = 4, kBytes = 4 * kLayers * kWidth * kWidth;
  const int64_t copies = ranks;
  test::CountedMemory memory;
  int64_t held = memory.bytes(), weights = 0, gradients = 0, states = 0;
  run_as_threads(ranks, [&, stage = stage](World world) {
    at::set_num_threads(1);
    torch::nn::Sequential net = test::make_seeded(1, [] {
      torch::nn::Sequential layers;
      for (int64_t i = 0; i < kLayers; ++i) {
        layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
      }
      return layers;
    });
    const auto grown = [&](int64_t& by) {
      world.barrier();
      if (world.rank() == 0) by = memory.bytes() - std::exchange(held, memory.bytes());
      world.barrier();
    };
    ParallelModel parallel = initialize(
        net,
        stage == 0 ? Config::parse("{}") : zero_config("", stage, 0, stage == 3 ? kGathered : ""),
        in(world));
    grown(weights);
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    const torch::optim::AdamWOptions options(1e-3);
    if (stage == 1 || stage == 2) {
      optimizer = std::make_unique<ZeroOptimizer<AdamW>>(parallel, options);
    } else {
      optimizer = std::make_unique<AdamW>(net->parameters(), options);
    }
    DistributedDataParallel<torch::nn::Sequential> ddp(net, parallel.mpu().data_group());
    ddp.forward(torch::ones({1, kWidth})).sum().backward();
    grown(gradients);
    optimizer->step();
    grown(states);
  });
  constexpr double kPercent = kBytes / 100.0;
  EXPECT_NEAR(weights, stage == 3 ? kBytes : copies * kBytes, copies * kPercent);
  // LibTorch's DistributedDataParallel has buckets of as many bytes.
  EXPECT_NEAR(gradients, stage == 0 ? copies * 2 * kBytes : kBytes, copies * kPercent);
  EXPECT_NEAR(states, stage == 0 ? copies * 2 * kBytes : 2 * kBytes, copies * kPercent);
  RecordProperty("bytes", c10::str(weights, " ", gradients, " ", states));
}

}  // namespace
}  // namespace oslo::zero_test
