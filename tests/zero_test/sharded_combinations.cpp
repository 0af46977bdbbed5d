// Stage 3 beside tensor ranks, checkpoints, loss scaling, recomputation and deferred construction.
#include <limits>

#include "parallelizers/memory/recompute/layer_segments.h"
#include "tests/support/temporary_directory.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

const std::string kTwoTensorRanks = R"(, "model_parallelism": {"tensor_parallel_size": 2})";

Config config_of_stage(int stage, const std::string& more = "") {
  return Config::parse(c10::str(R"({"zero_optimization": {"enabled": )",
                                stage > 0 ? "true" : "false", R"(, "stage": )", std::max(stage, 1),
                                "}", more, "}"));
}

/// Steps of one device, and of ranks with their rows of each batch.
template <typename Optimizer, typename Options>
void expect_one_device(int ranks, const std::string& more, const Options& options,
                       const std::function<void(ParallelModel&)>& before_step = {},
                       double clip = 0) {
  run_as_threads(ranks, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, config_of_stage(3, more), in(world));
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
  expect_one_device<AdamW>(4, kTwoTensorRanks, adamw());
}

TEST(ShardedWeights, ClippedByOurs) {
  const auto clip = [](ParallelModel& parallel) { parallel.clip_grad_norm_(0.05); };
  expect_one_device<AdamW>(3, "", adamw(), clip, 0.05);
  expect_one_device<AdamW>(4, kTwoTensorRanks, adamw(), clip, 0.05);
}

TEST(ShardedWeights, ByAnOptimizerThatLooksAtWholeTensors) {
  expect_one_device<ByNorm>(3, "", torch::optim::SGDOptions(0.1));
  expect_one_device<ByNorm>(4, kTwoTensorRanks, torch::optim::SGDOptions(0.1));
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
  expect_one_device<AdamW>(4, kTwoTensorRanks + again, adamw(), expect_used);
}

TEST(ShardedWeights, AreWholeAgainByDeparallelize) {
  for (const std::string& more : {std::string(), kTwoTensorRanks}) {
    run_as_threads(more.empty() ? 2 : 4, [&](World world) {
      at::set_num_threads(1);
      Net plain = make_net(), net = make_net();
      ParallelModel parallel = initialize(net, config_of_stage(3, more), in(world));
      parallel.deparallelize();
      expect_equal(net, plain, "deparallelized");
    });
  }
}

TEST(ShardedWeights, Verified) {
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, config_of_stage(3), in(world));
    const Tensors rows = batch(0, 0, 1);
    const auto report = verify(parallel, plain.ptr(), {rows[0]});
    EXPECT_TRUE(report.equal()) << report.to_string();
  });
}

class ShardedGrid : public ::testing::TestWithParam<std::tuple<int, int, std::string>> {};
INSTANTIATE_TEST_SUITE_P(TensorAndPipeline, ShardedGrid,
                         ::testing::Values(std::tuple(1, 1, "1f1b"), std::tuple(1, 2, "1f1b"),
                                           std::tuple(1, 2, "gpipe"),
                                           std::tuple(1, 2, "zero_bubble"),
                                           std::tuple(2, 1, "1f1b"), std::tuple(2, 2, "1f1b"),
                                           std::tuple(1, 2, "zbv")));

TEST_P(ShardedGrid, OfASchedule) {
  const auto& [tensor, pipeline, kind] = GetParam();
  const std::string more = c10::str(R"(, "model_parallelism": {"tensor_parallel_size": )", tensor,
                                    R"(, "pipeline_parallel_size": )", pipeline,
                                    R"(, "pipeline_schedule": ")", kind, "\"}");
  run_as_threads(2 * tensor * pipeline, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, config_of_stage(3, more), in(world));
    AdamW reference(trained(plain), adamw()), optimizer(trained(net), adamw());
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    const auto loss_of = [](Net& model, const Tensors& rows) {
      return torch::mse_loss(model->forward(rows[0]), rows[1]);
    };
    for (int step = 0; step < 4; ++step) {
      reference.zero_grad();
      loss_of(plain, batch(step, 0, 1)).backward();
      torch::nn::utils::clip_grad_norm_(trained(plain), 0.1);
      reference.step();
      optimizer.zero_grad();
      schedule.forward_backward_step(batch(step, parallel.mpu().rank("data"), 2),
                                     [&](const Tensors& micro) { return loss_of(net, micro); });
      parallel.clip_grad_norm_(0.1);
      optimizer.step();
    }
    const Tensors mine = trained(net), theirs = trained(plain);
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_TRUE(torch::allclose(full_tensor(mine[i]), theirs[i], 1e-7, 1e-9)) << i;
    }
  });
}

struct OnGrid {
  int ranks;
  int stage;  ///< 0: plain
  std::string more;
};

void PrintTo(const OnGrid& one, std::ostream* out) {
  *out << one.ranks << " stage " << one.stage << " " << one.more;
}

class ShardedCheckpoints : public ::testing::TestWithParam<std::tuple<OnGrid, OnGrid>> {};

TEST_P(ShardedCheckpoints, GoOnInAnyOtherGrid) {
  const auto& [first, second] = GetParam();
  const test::TemporaryDirectory folder;
  Net plain = make_net();
  AdamW reference(trained(plain), adamw());
  train(plain, reference, 0, 6);
  const auto with = [&](const OnGrid& one, const auto& run) {
    run_as_threads(one.ranks, [&](World world) {
      at::set_num_threads(1);
      Net net = make_net();
      ParallelModel parallel = initialize(net, config_of_stage(one.stage, one.more), in(world));
      AdamW optimizer(trained(net), adamw());
      run(parallel, net, optimizer);
    });
  };
  with(first, [&](ParallelModel& parallel, Net& net, AdamW& optimizer) {
    train(net, optimizer, 0, 3);
    parallel.save_parallelized((folder / "saved").string(), SaveOptions().optimizer(&optimizer));
    train(net, optimizer, 3, 6);
    expect_near(net, plain);
  });
  with(second, [&](ParallelModel& parallel, Net& net, AdamW& optimizer) {
    train(net, optimizer, 7, 9);
    parallel.from_parallelized((folder / "saved").string(), LoadOptions().optimizer(&optimizer));
    train(net, optimizer, 3, 6);
    expect_near(net, plain);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, ShardedCheckpoints,
    ::testing::Values(std::tuple(OnGrid{2, 3, ""}, OnGrid{3, 3, ""}),
                      std::tuple(OnGrid{3, 3, ""}, OnGrid{1, 0, ""}),
                      std::tuple(OnGrid{2, 0, ""}, OnGrid{2, 3, ""}),
                      std::tuple(OnGrid{4, 3, kTwoTensorRanks}, OnGrid{2, 3, ""}),
                      std::tuple(OnGrid{3, 3, ""}, OnGrid{4, 3, kTwoTensorRanks})));

TEST(ShardedWeights, AScalerSkipsTheStepOnAllReplicas) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, config_of_stage(3), in(world));
    DistributedDataParallel<Net> plain_ddp(plain, parallel.mpu().data_group()),
        ddp(net, parallel.mpu().data_group());
    AdamW reference(trained(plain), adamw()), optimizer(trained(net), adamw());
    GradScaler scaler(parallel, GradScalerOptions().init_scale(8));
    for (int step = 0; step < 4; ++step) {
      const Tensors rows = batch(step, world.rank(), 2);
      reference.zero_grad();
      torch::mse_loss(plain_ddp.forward(rows[0]), rows[1]).backward();
      optimizer.zero_grad();
      scaler.scale(torch::mse_loss(ddp.forward(rows[0]), rows[1])).backward();
      const bool bad = step == 2;
      if (bad && world.rank() == 1) {
        const torch::NoGradGuard no_grad;
        local_tensor(net->up->bias.grad()).fill_(std::numeric_limits<double>::infinity());
      }
      EXPECT_EQ(scaler.step(optimizer), !bad);
      scaler.update();
      if (!bad) reference.step();
      expect_near(net, plain);
    }
  });
}

TEST(ShardedWeights, ConstructedLate) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    Net plain = make_net();
    Net net = test::make_seeded(5, [] {
      const DeferredInit deferred;
      return Net();
    });
    ParallelModel parallel = initialize(net, config_of_stage(3), in(world));
    for (size_t i = 0; i < trained(net).size(); ++i) {
      EXPECT_TRUE(torch::equal(full_tensor(trained(net)[i]), trained(plain)[i])) << i;
    }
  });
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
    ParallelModel parallel = initialize(net, config_of_stage(3), in(world));
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
