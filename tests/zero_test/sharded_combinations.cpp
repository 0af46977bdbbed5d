// Stage 3 beside tensor ranks, other optimizers, recomputation and deferred construction.
// combinations.cpp and checkpoints.cpp have what it shares with stages 1 and 2.
#include "parallelizers/memory/recompute/layer_segments.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

/// Steps of one device, and of ranks with their rows of each batch.
template <typename Optimizer, typename Options>
void expect_one_device(int ranks, const std::string& more, const Options& options,
                       const std::function<void(ParallelModel&)>& before_step = {}, double clip = 0,
                       int shards = 0) {
  run_as_threads(ranks, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, zero_config(more, 3, shards), in(world));
    const MPU& mpu = parallel.mpu();
    Optimizer reference(trained(plain), options), optimizer(trained(net), options);
    DistributedDataParallel<Net> ddp(net, mpu.data_group());
    const int replicas = mpu.size("data");
    for (int step = 0; step < 5; ++step) {
      const Tensors all = batch(step, 0, 1), own = batch(step, mpu.rank("data"), replicas);
      const double share = static_cast<double>(own[0].size(0)) * replicas / 8;
      reference.zero_grad();
      torch::mse_loss(plain->forward(all[0]), all[1]).backward();
      if (clip > 0) torch::nn::utils::clip_grad_norm_(trained(plain), clip);
      reference.step();
      optimizer.zero_grad();
      (torch::mse_loss(ddp.forward(own[0]), own[1]) * share).backward();
      if (before_step) before_step(parallel);
      optimizer.step();
      expect_near(net, plain);
    }
  });
}

TEST(ShardedWeights, BesideTensorRanks) {
  expect_one_device<AdamW>(4, kTensor, adamw());
  expect_one_device<AdamW>(8, kTensor, adamw(), {}, 0, 2);
}

TEST(ShardedWeights, ClippedByOurs) {
  const auto clip = [](ParallelModel& parallel) { parallel.clip_grad_norm_(0.05); };
  expect_one_device<AdamW>(3, "", adamw(), clip, 0.05);
  expect_one_device<AdamW>(4, kTensor, adamw(), clip, 0.05);
  expect_one_device<AdamW>(4, "", adamw(), clip, 0.05, 2);
}

TEST(ShardedWeights, ByAnOptimizerThatLooksAtWholeTensors) {
  expect_one_device<ByNorm>(3, "", torch::optim::SGDOptions(0.1));
  expect_one_device<ByNorm>(4, kTensor, torch::optim::SGDOptions(0.1));
  expect_one_device<ByNorm>(4, "", torch::optim::SGDOptions(0.1), {}, 0, 2);
}

TEST(ShardedWeights, ByOtherOptimizers) {
  expect_one_device<torch::optim::SGD>(2, "", torch::optim::SGDOptions(0.1).weight_decay(0.1));
  expect_one_device<torch::optim::Adagrad>(2, "", torch::optim::AdagradOptions(0.1));
  expect_one_device<torch::optim::RMSprop>(2, "", torch::optim::RMSpropOptions(0.01));
  expect_one_device<torch::optim::Adam>(2, "", torch::optim::AdamOptions(0.01).weight_decay(0.1));
}

TEST(ShardedWeights, ComputedAgainInBackward) {
  const auto expect_used = [](ParallelModel& parallel) {
    const auto observer = context_of(parallel.mpu().tensor_mesh())->observer;
    for (const SegmentReport& each : dynamic_cast<const LayerSegments&>(*observer).report()) {
      EXPECT_TRUE(each.used && each.not_cut.empty()) << each.name << ": " << each.not_cut;
    }
  };
  const std::string again = R"(, "activation_checkpoint": {"enabled": true})";
  expect_one_device<AdamW>(2, again, adamw(), expect_used);
  expect_one_device<AdamW>(4, kTensor + again, adamw(), expect_used);
  expect_one_device<AdamW>(4, again, adamw(), expect_used, 0, 2);
}

TEST(ShardedWeights, AreWholeAgainByDeparallelize) {
  struct Grid {
    int ranks;
    std::string more = "";
    int shards = 0;
  };
  for (const Grid& grid : {Grid{2}, Grid{4, kTensor}, Grid{4, "", 2}}) {
    run_as_threads(grid.ranks, [&](World world) {
      at::set_num_threads(1);
      Net plain = make_net(), net = make_net();
      ParallelModel parallel = initialize(net, zero_config(grid.more, 3, grid.shards), in(world));
      parallel.deparallelize();
      expect_equal(net, plain, "deparallelized");
    });
  }
}

TEST(ShardedWeights, Verified) {
  for (const int shards : {0, 2}) {
    run_as_threads(shards == 0 ? 2 : 4, [&](World world) {
      at::set_num_threads(1);
      Net plain = make_net(), net = make_net();
      ParallelModel parallel = initialize(net, zero_config("", 3, shards), in(world));
      const Tensors rows = batch(0, 0, 1);
      const auto report = verify(parallel, plain.ptr(), {rows[0]});
      EXPECT_TRUE(report.equal()) << report.to_string();
    });
  }
}

TEST(ShardedWeights, ConstructedLate) {
  for (const int shards : {0, 2}) {
    run_as_threads(shards == 0 ? 2 : 4, [&](World world) {
      at::set_num_threads(1);
      Net plain = make_net();
      Net net = test::make_seeded(5, [] {
        const DeferredInit deferred;
        return Net();
      });
      ParallelModel parallel = initialize(net, zero_config("", 3, shards), in(world));
      for (size_t i = 0; i < trained(net).size(); ++i) {
        EXPECT_TRUE(torch::equal(full_tensor(trained(net)[i]), trained(plain)[i])) << i;
      }
    });
  }
}

TEST(ShardedWeights, MeanOverUnequalCounts) {  // acceptance Z1
  run_as_threads(2, [](World world) {
    struct WeightImpl : torch::nn::Module {
      WeightImpl() { w = register_parameter("w", torch::ones({3})); }
      Tensor forward(const Tensor& x) { return x * w.sum() / 3; }
      Tensor w;
    };
    struct Weight : torch::nn::ModuleHolder<WeightImpl> {
      using ModuleHolder::ModuleHolder;
    };
    Weight net;
    ParallelModel parallel = initialize(net, zero_config("", 3), in(world));
    DistributedDataParallel<Weight> ddp(net, parallel.mpu().data_group());
    const Tensor x = world.rank() == 0 ? torch::ones({5}) : torch::full({1}, 7.0);
    const Tensor out = ddp.forward(x);
    counted_mean(out.sum(), static_cast<double>(x.numel()), ddp).backward();
    EXPECT_DOUBLE_EQ(full_tensor(net->w.grad()).sum().item<double>(), 2.0);
    net->w.mutable_grad().reset();
    // Sums of two micro-batches, the first not exchanged: (5 + 2 * 7 ...) by all counts.
    {
      const auto guard = ddp.no_sync();
      counted_mean(ddp.forward(x).sum(), static_cast<double>(x.numel()), ddp).backward();
    }
    counted_mean(ddp.forward(x).sum(), static_cast<double>(x.numel()), ddp).backward();
    EXPECT_NEAR(full_tensor(net->w.grad()).sum().item<double>(), 2.0, 1e-6);
  });
}

}  // namespace
}  // namespace oslo::zero_test
