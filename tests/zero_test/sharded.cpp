// Stage 3: weights of which each data rank keeps a part, beside the same DDP program.
#include <ATen/autocast_mode.h>

#include "parallelizers/data/sharded/shard_parameters.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

Config sharded_config(const std::string& more = "") {
  return Config::parse(R"({"zero_optimization": {"enabled": true, "stage": 3)" + more + "}}");
}

int64_t gathered_bytes(const Net& net) {
  int64_t bytes = 0;
  for (const auto& buckets : buckets_of(trained(net))) bytes += buckets->gathered_bytes();
  return bytes;
}

class Sharded : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Sharded, ::testing::Values(2, 3));

void expect_as_ddp(const Tensor& seen, const Tensor& plain, int ranks, const std::string& what) {
  const Tensor whole = full_tensor(seen);
  EXPECT_TRUE(ranks == 2 ? torch::equal(whole, plain) : torch::allclose(whole, plain, 1e-10, 1e-12))
      << what;
}

TEST_P(Sharded, TrainsAsDdp) {
  const int ranks = GetParam();
  run_as_threads(ranks, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, sharded_config(), in(world));
    const MPU& mpu = parallel.mpu();
    AdamW reference(plain->parameters(), adamw()), optimizer(net->parameters(), adamw());
    DistributedDataParallel<Net> plain_ddp(plain, mpu.data_group()), ddp(net, mpu.data_group());
    EXPECT_LT(net->up->weight.numel(), plain->up->weight.numel());
    for (int step = 0; step < 10; ++step) {
      const Tensors rows = batch(step, world.rank(), ranks);
      reference.zero_grad();
      const Tensor expected = torch::mse_loss(plain_ddp.forward(rows[0]), rows[1]);
      expected.backward();
      optimizer.zero_grad();
      const Tensor loss = torch::mse_loss(ddp.forward(rows[0]), rows[1]);
      EXPECT_EQ(gathered_bytes(net), 0);
      loss.backward();
      EXPECT_EQ(gathered_bytes(net), 0);
      expect_as_ddp(loss, expected, ranks, c10::str("loss of step ", step));
      const Tensors own = trained(net), others = trained(plain);
      for (size_t i = 0; i < own.size(); ++i) {
        ASSERT_TRUE(own[i].grad().defined()) << i;
        EXPECT_EQ(own[i].grad().sizes(), own[i].sizes()) << i;
        expect_as_ddp(own[i].grad(), others[i].grad(), ranks, c10::str(step, ": gradient ", i));
      }
      reference.step();
      optimizer.step();
      for (size_t i = 0; i < own.size(); ++i) {
        expect_as_ddp(own[i], others[i], ranks, c10::str(step, ": weight ", i));
      }
    }
  });
}

}  // namespace
}  // namespace oslo::zero_test
