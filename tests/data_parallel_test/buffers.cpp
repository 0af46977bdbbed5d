// Buffers, and whatever else is sent from the first data rank.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/data_parallel_test/net.h"

namespace data_parallel_test {
namespace {

struct NormedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return norm->forward(x); }
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(3))};
};
TORCH_MODULE(Normed);

TEST(DataParallelBuffers, FollowRankZero) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Normed net = seeded<Normed>(0);
    net->norm->running_mean.fill_(world.rank());
    DistributedDataParallel<Normed> ddp(net, mpu.data_group());
    expect_close(net->norm->running_mean, torch::zeros({3}, torch::kDouble), "at construction");

    Normed first = seeded<Normed>(0);
    const auto x = [](int rank) { return random({4, 3}, rank); };
    for (int step = 0; step < 2; ++step) {
      first->forward(x(0));
      ddp.forward(x(world.rank())).sum().backward();
    }
    const auto before = ddp.ledger().total("broadcast").calls;
    {
      const torch::NoGradGuard evaluation;
      net->eval();
      for (int i = 0; i < 2; ++i) ddp.forward(x(0));
    }
    EXPECT_EQ(ddp.ledger().total("broadcast").calls - before, 1);
    expect_close(net->norm->running_mean, first->norm->running_mean, "running mean");
    expect_close(net->norm->running_var, first->norm->running_var, "running variance");
    EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 2);
  });
}

TEST(DataParallelBuffers, StayWhenToldSo) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Normed net = seeded<Normed>(0);
    DistributedDataParallel<Normed> ddp(net, mpu.data_group(),
                                        DDPOptions().broadcast_buffers(false));
    ddp.ledger().clear();
    for (int step = 0; step < 3; ++step) {
      ddp.forward(random({4, 3}, world.rank())).sum().backward();
    }
    EXPECT_EQ(ddp.ledger().total("broadcast").calls, 0);
  });
}

// What a broadcast in bytes has to carry.
struct OddTensorsImpl : torch::nn::Module {
  explicit OddTensorsImpl(int rank) {
    weight = register_parameter("weight", torch::full({3, 2}, rank, torch::kDouble).t());
    register_buffer("mask", torch::full({5}, rank == 0, torch::kBool));
    register_buffer("half", torch::full({2, 2}, rank + 0.5, torch::kHalf).t());
    register_buffer("empty", torch::zeros({0, 4}));
    register_buffer("count", torch::tensor(rank + 7, torch::kLong));
  }
  Tensor weight;
};
TORCH_MODULE(OddTensors);

TEST(DataParallelBuffers, AnyTypeAndLayoutIsSent) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    OddTensors here(world.rank()), first(0);
    DistributedDataParallel<OddTensors> ddp(here, mpu.data_group());
    EXPECT_TRUE(here->weight.equal(first->weight));
    for (const auto& buffer : here->named_buffers()) {
      EXPECT_TRUE(buffer.value().equal(first->named_buffers()[buffer.key()])) << buffer.key();
    }
    EXPECT_EQ(ddp.ledger().total("broadcast").calls, 1);
  });
}

}  // namespace
}  // namespace data_parallel_test
