// ZeroOptimizer beside pipeline stages and tensor ranks, loss scaling, and weights kept in fp32.
#include <limits>

#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

struct Grid {
  int tensor, pipeline, stage;
  std::string schedule = "1f1b";
  int shards = 0;  ///< data ranks that have the weights once, of two such groups; 0: all of two
  std::string keys = "";  ///< further ones of ZeRO
};

void PrintTo(const Grid& grid, std::ostream* out) {
  *out << "tensor " << grid.tensor << " pipeline " << grid.pipeline << " stage " << grid.stage
       << " " << grid.schedule << " in groups of " << grid.shards << grid.keys;
}

class ZeroGrid : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(TensorPipelineStageAndSchedule, ZeroGrid,
                         ::testing::Values(Grid{1, 2, 1}, Grid{1, 2, 2}, Grid{2, 1, 2},
                                           Grid{2, 2, 2}, Grid{1, 1, 3}, Grid{1, 2, 3},
                                           Grid{1, 2, 3, "gpipe"}, Grid{1, 2, 3, "zero_bubble"},
                                           Grid{1, 2, 3, "zbv"}, Grid{2, 1, 3}, Grid{2, 2, 3},
                                           Grid{1, 1, 3, "1f1b", 2}, Grid{1, 2, 3, "1f1b", 2},
                                           Grid{1, 2, 3, "zero_bubble", 2},
                                           Grid{2, 1, 3, "1f1b", 2}, Grid{2, 2, 3, "zbv"}));
INSTANTIATE_TEST_SUITE_P(Gathered, ZeroGrid,
                         ::testing::Values(Grid{1, 1, 3, "1f1b", 0, kGathered},
                                           Grid{1, 2, 3, "1f1b", 0, kGathered},
                                           Grid{1, 2, 3, "zero_bubble", 0, kGathered},
                                           Grid{1, 2, 3, "zbv", 0, kGathered},
                                           Grid{2, 2, 3, "1f1b", 0, kGathered},
                                           Grid{1, 2, 3, "1f1b", 2, kGathered},
                                           Grid{1, 2, 3, "zero_bubble", 2, kGathered}));

TEST_P(ZeroGrid, IsOneDevice) {
  const auto& [tensor, pipeline, stage, kind, shards, keys] = GetParam();
  const int replicas = 2 * std::max(shards, 1);
  const std::string more = c10::str(R"(, "model_parallelism": {"tensor_parallel_size": )", tensor,
                                    R"(, "pipeline_parallel_size": )", pipeline,
                                    R"(, "pipeline_schedule": ")", kind, "\"}");
  run_as_threads(replicas * tensor * pipeline, [&, pipeline = pipeline, stage = stage,
                                                shards = shards, keys = keys](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, zero_config(more, stage, shards, keys), in(world));
    AdamW reference(trained(plain), adamw());
    const std::unique_ptr<AdamW> optimizer = adamw_of(parallel, net, stage);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    const auto loss_of = [](Net& model, const Tensors& rows) {
      return torch::mse_loss(model->forward(rows[0]), rows[1]);
    };
    for (int step = 0; step < 5; ++step) {
      reference.zero_grad();
      for (int more = 0; more <= step % 2; ++more) {
        loss_of(plain, batch(step + 5 * more, 0, 1)).backward();
      }
      torch::nn::utils::clip_grad_norm_(trained(plain), 0.1);
      reference.step();
      optimizer->zero_grad();
      for (int more = 0; more <= step % 2; ++more) {
        schedule.forward_backward_step(
            batch(step + 5 * more, parallel.mpu().rank("data"), replicas),
            [&](const Tensors& micro) { return loss_of(net, micro); });
      }
      if (pipeline > 1 && step == 0 && stage < 3) {
        // Each stage would wait for others that list other gradients.
        Tensors rows_of_stages = trained(net);
        rows_of_stages.pop_back();  // a number, which lies on the model's own mesh
        EXPECT_THAT(error_of([&] { torch::nn::utils::clip_grad_norm_(rows_of_stages, 0.1); }),
                    ::testing::HasSubstr("use parallel.clip_grad_norm_"));
      }
      parallel.clip_grad_norm_(0.1);
      optimizer->step();
    }
    const Tensors mine = trained(net), theirs = trained(plain);
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_TRUE(torch::allclose(full_tensor(mine[i]), theirs[i], 1e-7, 1e-9)) << i;
    }
  });
}

class ZeroScaled : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, ZeroScaled, ::testing::Values(1, 3));

TEST_P(ZeroScaled, AScalerSkipsTheStepOnAllReplicas) {
  run_as_threads(2, [stage = GetParam()](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, zero_config("", stage), in(world));
    DistributedDataParallel<Net> plain_ddp(plain, parallel.mpu().data_group()),
        ddp(net, parallel.mpu().data_group());
    AdamW reference(trained(plain), adamw());
    const std::unique_ptr<AdamW> optimizer = adamw_of(parallel, net, stage);
    GradScaler scaler(parallel, GradScalerOptions().init_scale(8));
    for (int step = 0; step < 4; ++step) {
      const Tensors rows = batch(step, world.rank(), 2);
      reference.zero_grad();
      torch::mse_loss(plain_ddp.forward(rows[0]), rows[1]).backward();
      optimizer->zero_grad();
      scaler.scale(torch::mse_loss(ddp.forward(rows[0]), rows[1])).backward();
      const bool bad = step == 2;
      if (bad && world.rank() == 1) {
        const torch::NoGradGuard no_grad;
        const Tensor& gradient = stage == 3 ? net->up->bias.grad() : net->scale.grad();
        local_tensor(gradient).fill_(std::numeric_limits<double>::infinity());
      }
      EXPECT_EQ(scaler.step(*optimizer), !bad);
      scaler.update();
      if (!bad) reference.step();
      if (stage == 3) {
        expect_near(net, plain);
      } else {
        expect_equal(net, plain, c10::str("step ", step));
      }
    }
  });
}

/// Five tokens on one replica, one on the other.
TEST(Zero, ACountedMeanIsThatOfAllTokens) {
  run_as_threads(2, [](World world) {
    for (const int stage : {1, 2}) {
      torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
      ParallelModel parallel = initialize(net, zero_config("", stage), in(world));
      ZeroOptimizer<torch::optim::SGD> optimizer(parallel, torch::optim::SGDOptions(0.1));
      DistributedDataParallel<torch::nn::Linear> ddp(net, parallel.mpu().data_group());
      const bool first = world.rank() == 0;
      const Tensor x = first ? torch::ones({5, 1}) : torch::full({1, 1}, 7.0);
      for (int pass = 1; pass <= 3; ++pass) {
        counted_mean(ddp.forward(x).sum(), first ? 5 : 1, ddp).backward();
        EXPECT_NEAR(full_tensor(net->weight.grad()).item<double>(), 2.0, 1e-6) << pass;
        // Written in between: rows that are empty on one rank are not those of nothing.
        if (pass == 2) parallel.clip_grad_norm_(1e9), net->weight.grad().mul_(1);
      }
    }
  });
}

TEST(Zero, CopiesInHalfFollowWhatOthersStepped) {
  const auto train = [](World world, bool shared) {
    at::set_num_threads(1);
    Net net = make_net();
    net->to(torch::kFloat);
    ParallelModel parallel = initialize(
        net, zero_config(R"(, "master_weights": true, "amp": {"enabled": true})"), in(world));
    DistributedDataParallel<Net> ddp(net, parallel.mpu().data_group());
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (shared) {
      optimizer = std::make_unique<ZeroOptimizer<torch::optim::SGD>>(
          parallel, trained(net), torch::optim::SGDOptions(0.1).momentum(0.9));
    } else {
      optimizer = std::make_unique<torch::optim::SGD>(trained(net),
                                                      torch::optim::SGDOptions(0.1).momentum(0.9));
    }
    for (int step = 0; step < 5; ++step) {
      const Tensors rows = batch(step, world.rank(), 2);
      optimizer->zero_grad();
      torch::mse_loss(ddp.forward(rows[0].to(torch::kFloat)), rows[1].to(torch::kFloat)).backward();
      optimizer->step();
    }
    Tensors weights;
    for (const Tensor& each : trained(net)) weights.push_back(each.detach().clone());
    return weights;
  };
  run_as_threads(2, [&](World world) {
    const Tensors mine = train(world, true), theirs = train(world, false);
    for (size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(torch::equal(mine[i], theirs[i])) << i;
  });
}

}  // namespace
}  // namespace oslo::zero_test
