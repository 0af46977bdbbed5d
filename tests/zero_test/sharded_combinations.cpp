// Stage 3 beside tensor ranks, other optimizers, recomputation and deferred construction.
// combinations.cpp and checkpoints.cpp have what it shares with stages 1 and 2.
#include <limits>

#include "parallelizers/memory/recompute/layer_segments.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

/// Weights that are gathered, and one copy of them a host.
const std::vector<std::string> kWays = {kGathered, kOneCopy};

/// Steps of one device, and of ranks with their rows of each batch.
template <typename Optimizer, typename Options>
void expect_steps(int ranks, const Config& config, const Options& options,
                  const std::function<void(ParallelModel&)>& before_step, double clip) {
  run_as_threads(ranks, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, config, in(world));
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

/// The same with weights that are gathered, and with one copy of them a host.
template <typename Optimizer, typename Options>
void expect_one_device(int ranks, const std::string& more, const Options& options,
                       const std::function<void(ParallelModel&)>& before_step = {}, double clip = 0,
                       int shards = 0) {
  for (const std::string& keys : kWays) {
    SCOPED_TRACE(keys);
    expect_steps<Optimizer>(ranks, zero_config(more, 3, shards, keys), options, before_step, clip);
  }
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

struct ShardedGrid {
  int ranks;
  std::string more = "";
  int shards = 0;
};

TEST(ShardedWeights, AreWholeAgainByDeparallelize) {
  for (const ShardedGrid& grid : {ShardedGrid{2}, ShardedGrid{4, kTensor}, ShardedGrid{4, "", 2}}) {
    for (const std::string& keys : kWays) {
      run_as_threads(grid.ranks, [&](World world) {
        at::set_num_threads(1);
        Net plain = make_net(), net = make_net();
        ParallelModel parallel =
            initialize(net, zero_config(grid.more, 3, grid.shards, keys), in(world));
        parallel.deparallelize();
        expect_equal(net, plain, "deparallelized" + keys);
      });
    }
  }
}

/// With states, and a gradient that is there; each rank then has memory of its own.
TEST(ShardedWeights, AreTrainedOnBehindDeparallelize) {
  for (const ShardedGrid& grid : {ShardedGrid{2}, ShardedGrid{4, kTensor}, ShardedGrid{4, "", 2}}) {
    for (const std::string& keys : kWays) {
      SCOPED_TRACE(grid.more + keys);
      run_as_threads(grid.ranks, [&](World world) {
        at::set_num_threads(1);
        Net plain = make_net(), net = make_net();
        AdamW reference(trained(plain), adamw()), optimizer(trained(net), adamw());
        ParallelModel parallel =
            initialize(net, zero_config(grid.more, 3, grid.shards, keys), in(world));
        train(plain, reference, 0, 3);
        train(net, optimizer, 0, 3);
        parallel.deparallelize(ReshardOptions().optimizer(&optimizer));
        const auto gradients = trained(net), others = trained(plain);
        for (size_t i = 0; i < gradients.size(); ++i) {
          EXPECT_TRUE(torch::allclose(gradients[i].grad(), others[i].grad(), 1e-9, 1e-11)) << i;
        }
        if (world.rank() == 1) train(net, optimizer, 3, 4);
        if (world.rank() == 1) train(plain, reference, 3, 4);
        world.barrier();
        for (size_t i = 0; i < gradients.size(); ++i) {
          EXPECT_TRUE(torch::allclose(gradients[i], others[i], 1e-9, 1e-11)) << i;
        }
      });
    }
  }
}

TEST(ShardedWeights, AreLaidOtherwiseByReshard) {
  run_as_threads(4, [](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    AdamW reference(trained(plain), adamw()), optimizer(trained(net), adamw());
    ParallelModel parallel = initialize(net, zero_config("", 3), in(world));
    const std::vector<Config> next = {zero_config(kTensor, 3, 0, kGathered),
                                      zero_config(kTensor, 3), zero_config("", 3, 2),
                                      zero_config("", 3)};
    for (int step = 0; step < 5; ++step) {
      train(plain, reference, step, step + 1);
      train(net, optimizer, step, step + 1);
      expect_near(net, plain);
      optimizer.zero_grad();  // initialize takes no gradients of what is shared out
      if (step < 4) parallel.reshard(next[step], ReshardOptions().optimizer(&optimizer));
    }
  });
}

TEST(ShardedWeights, Verified) {
  for (const int shards : {0, 2}) {
    for (const std::string& keys : kWays) {
      run_as_threads(shards == 0 ? 2 : 4, [&](World world) {
        at::set_num_threads(1);
        Net plain = make_net(), net = make_net();
        ParallelModel parallel = initialize(net, zero_config("", 3, shards, keys), in(world));
        const Tensors rows = batch(0, 0, 1);
        const auto report = verify(parallel, plain.ptr(), {rows[0]});
        EXPECT_TRUE(report.equal()) << keys << report.to_string();
      });
    }
  }
}

TEST(ShardedWeights, ConstructedLate) {
  for (const ShardedGrid& grid : {ShardedGrid{2}, ShardedGrid{4, kTensor}, ShardedGrid{4, "", 2}}) {
    for (const std::string& keys : kWays) {
      run_as_threads(grid.ranks, [&](World world) {
        at::set_num_threads(1);
        Net plain = make_net();
        Net net = test::make_seeded(5, [] {
          const DeferredInit deferred;
          return Net();
        });
        ParallelModel parallel =
            initialize(net, zero_config(grid.more, 3, grid.shards, keys), in(world));
        AdamW reference(trained(plain), adamw()), optimizer(trained(net), adamw());
        for (int step = 0; step < 2; ++step) {
          for (size_t i = 0; i < trained(net).size(); ++i) {
            const Tensor own = full_tensor(trained(net)[i]), other = trained(plain)[i];
            EXPECT_TRUE(step == 0 ? torch::equal(own, other) : torch::allclose(own, other, 1e-9))
                << grid.more << keys << i;
          }
          train(plain, reference, step, step + 1);
          train(net, optimizer, step, step + 1);
        }
      });
    }
  }
}

const std::string kStages = R"(, "stages": {"down": 1, "head": 0, "scale": 1},
                                  "model_parallelism": {"pipeline_parallel_size": 2)";

/// A step of a schedule on the net's rows of a batch.
void step_in_stages(ParallelModel& parallel, PipelineSchedule& schedule, Net& net, int step,
                    double scale = 1) {
  const MPU& mpu = parallel.mpu();
  schedule.forward_backward_step(batch(step, mpu.rank("data"), mpu.size("data")),
                                 [&](const Tensors& micro) {
                                   return torch::mse_loss(net->forward(micro[0]), micro[1]) * scale;
                                 });
}

TEST(ShardedWeights, ConstructedLateOnStages) {
  for (const std::string& keys : kWays) {
    run_as_threads(4, [&](World world) {
      at::set_num_threads(1);
      Net plain = make_net();
      Net net = test::make_seeded(5, [] {
        const DeferredInit deferred;
        return Net();
      });
      ParallelModel parallel = initialize(net, zero_config(kStages + "}", 3, 0, keys), in(world));
      AdamW reference(trained(plain), adamw()), optimizer(trained(net), adamw());
      PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
      for (int step = 0; step < 3; ++step) {
        train(plain, reference, step, step + 1);
        optimizer.zero_grad();
        step_in_stages(parallel, schedule, net, step);
        optimizer.step();
        expect_near(net, plain);
      }
    });
  }
}

/// What an optimizer computes from gradients of a stage is noted, and is to keep no group alive.
TEST(ShardedWeights, OnStagesLeaveNothingBehind) {
  for (const std::string& keys : kWays) {
    run_as_threads(4, [&](World world) {
      at::set_num_threads(1);
      std::weak_ptr<Group> group;
      {
        Net net = make_net();
        ParallelModel parallel = initialize(net, zero_config(kStages + "}", 3, 0, keys), in(world));
        group = parallel.mpu().data_group();
        AdamW optimizer(trained(net), adamw());
        PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
        step_in_stages(parallel, schedule, net, 0);
        optimizer.step();
      }
      EXPECT_TRUE(group.expired()) << keys;
    });
  }
}

/// Acceptance S1.
TEST(ShardedWeights, AScalerSkipsTheStepOnAllStages) {
  const std::string grid = kStages + R"(, "tensor_parallel_size": 2})";
  for (const std::string& keys : kWays) {
    run_as_threads(8, [&](World world) {
      at::set_num_threads(1);
      Net plain = make_net(), net = make_net();
      ParallelModel parallel = initialize(net, zero_config(grid, 3, 0, keys), in(world));
      AdamW reference(trained(plain), adamw()), optimizer(trained(net), adamw());
      PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
      GradScaler scaler(parallel, GradScalerOptions().init_scale(8));
      for (int step = 0; step < 4; ++step) {
        const bool bad = step == 2;
        if (!bad) train(plain, reference, step, step + 1);
        optimizer.zero_grad();
        step_in_stages(parallel, schedule, net, step, scaler.scale(torch::ones({})).item<double>());
        for (const Tensor& each : trained(net)) {
          if (!bad || world.rank() != 5 || !each.grad().defined()) continue;
          const torch::NoGradGuard no_grad;
          local_tensor(each.grad()).fill_(std::numeric_limits<double>::infinity());
        }
        EXPECT_EQ(scaler.step(optimizer), !bad);
        scaler.update();
        EXPECT_EQ(scaler.get_scale(), step < 2 ? 8 : 4);
        expect_near(net, plain);
      }
    });
  }
}

/// Half casts of weights are their forwards' own.
TEST(ShardedWeights, UnderAutocastOnStages) {
  run_as_threads(4, [](World world) {
    at::set_num_threads(1);
    std::vector<Tensors> ends;
    for (const std::string& keys : kWays) {
      Net net = make_net();
      net->to(torch::kFloat);
      const std::string half = R"(, "amp": {"enabled": true, "dtype": "bfloat16"})";
      ParallelModel parallel =
          initialize(net, zero_config(kStages + "}" + half, 3, 0, keys), in(world));
      torch::optim::SGD optimizer(trained(net), torch::optim::SGDOptions(0.1));
      PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
      const MPU& mpu = parallel.mpu();
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        Tensors rows = batch(step, mpu.rank("data"), mpu.size("data"));
        for (Tensor& each : rows) each = each.to(torch::kFloat);
        schedule.forward_backward_step(rows, [&](const Tensors& micro) {
          return torch::mse_loss(net->forward(micro[0]), micro[1]);
        });
        optimizer.step();
      }
      Tensors& end = ends.emplace_back();
      for (const Tensor& each : trained(net)) end.push_back(full_tensor(each));
    }
    for (size_t i = 0; i < ends[0].size(); ++i) {
      EXPECT_TRUE(torch::allclose(ends[0][i], ends[1][i], 1e-2, 1e-3)) << i;
    }
  });
}

void expect_mean_over_unequal_counts(const std::string& keys) {
  run_as_threads(2, [&](World world) {
    struct WeightImpl : torch::nn::Module {
      WeightImpl() { w = register_parameter("w", torch::ones({3})); }
      Tensor forward(const Tensor& x) { return x * w.sum() / 3; }
      Tensor w;
    };
    struct Weight : torch::nn::ModuleHolder<WeightImpl> {
      using ModuleHolder::ModuleHolder;
    };
    Weight net;
    ParallelModel parallel = initialize(net, zero_config("", 3, 0, keys), in(world));
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

TEST(ShardedWeights, MeanOverUnequalCounts) {  // acceptance Z1
  for (const std::string& keys : kWays) expect_mean_over_unequal_counts(keys);
}

}  // namespace
}  // namespace oslo::zero_test
