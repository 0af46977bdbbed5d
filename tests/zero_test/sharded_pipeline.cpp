// Stage 3 under a pipeline's schedule, its weights gathered (acceptance Z12) and in one copy a
// host: 8 micro-batches, 2 stages, 2 replicas.
#include "parallelizers/data/sharded/host/host_weights.h"
#include "parallelizers/data/sharded/shard_parameters.h"
#include "tests/support/temporary_directory.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test::in_stages {
namespace {

using ::testing::HasSubstr;

struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    for (int i = 0; i < 4; ++i) blocks->push_back(torch::nn::Linear(7, 7));
    register_module("blocks", blocks);
    to(torch::kDouble);
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *blocks) x = torch::tanh(block->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Deep);

Deep make_deep() {
  return test::make_seeded(3, [] { return Deep(); });
}

constexpr int kReplicas = 2;
constexpr int kMicroBatches = 8;
constexpr int kBuckets = 2;  ///< of a stage: its layers

Tensor rows_of(int step, int replica) {
  const Tensor rows = torch::sin(torch::arange(32 * 7, torch::kDouble).view({32, 7}) + step);
  return rows.tensor_split(kReplicas)[replica];
}

Config config_of(const std::string& keys, const std::string& kind = "1f1b", int stages = 2) {
  return Config::parse(c10::str(
      R"({"model_parallelism": {"pipeline_parallel_size": )", stages, R"(, "pipeline_schedule": ")",
      kind, R"("}, "zero_optimization": {"enabled": true, "stage": 3)", keys, "}}"));
}

torch::optim::SGD sgd(const Deep& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// In the order of DistributedDataParallel: each replica adds up its micro-batches, then all do.
void step_of_one_device(Deep& plain, torch::optim::Optimizer& optimizer, int step) {
  std::vector<Tensors> of_replicas;
  for (int replica = 0; replica < kReplicas; ++replica) {
    optimizer.zero_grad();
    for (const Tensor& micro : rows_of(step, replica).tensor_split(kMicroBatches)) {
      (plain->forward(micro).square().mean() / kMicroBatches).backward();
    }
    Tensors& shares = of_replicas.emplace_back();
    for (const Tensor& each : plain->parameters()) shares.push_back(each.grad() / kReplicas);
  }
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    plain->parameters()[i].mutable_grad() = of_replicas[0][i] + of_replicas[1][i];
  }
  optimizer.step();
}

void step_of(PipelineSchedule& schedule, Deep& net, torch::optim::Optimizer& optimizer,
             const Tensor& rows) {
  optimizer.zero_grad();
  schedule.forward_backward_step(
      Tensors{rows}, [&](const Tensors& micro) { return net->forward(micro[0]).square().mean(); });
  optimizer.step();
}

void expect_weights(const Deep& net, const Deep& plain, bool bits, const std::string& what) {
  for (const auto& each : net->named_parameters()) {
    const Tensor own = full_tensor(each.value()), other = plain->named_parameters()[each.key()];
    EXPECT_TRUE(bits ? torch::equal(own, other) : torch::allclose(own, other, 1e-10, 1e-12))
        << what << ": " << each.key();
  }
}

/// A model over replicas beside one on one device, which is trained alike.
struct Trained {
  explicit Trained(World world, const std::string& keys = "", const std::string& kind = "1f1b",
                   int stages = 2)
      : parallel(initialize(net, config_of(keys, kind, stages), in(world))) {
    at::set_num_threads(1);
  }

  void step(int number) {
    step_of_one_device(plain, reference, number);
    step_of(schedule, net, optimizer, rows_of(number, parallel.mpu().rank("data")));
  }
  void step_bit_for_bit(int number) {
    step(number);
    expect_weights(net, plain, /*bits=*/true, c10::str("step ", number));
  }

  Deep plain = make_deep(), net = make_deep();
  ParallelModel parallel;
  torch::optim::SGD reference = sgd(plain), optimizer = sgd(net);
  PipelineSchedule schedule{parallel, PipelineOptions().num_microbatches(kMicroBatches)};
};

/// Over the data ranks, in a step.
struct Calls {
  int64_t gathers, scatters, all;
};

/// `bits`: where sums come in the same order.
Calls calls_of_a_step(World world, const std::string& keys, const std::string& kind = "1f1b",
                      bool bits = false) {
  Trained trained(world, keys, kind);
  Ledger& ledger = trained.parallel.mpu().data_group()->ledger();
  Calls calls{};
  for (int step = 0; step < 3; ++step) {
    ledger.clear();
    trained.step(step);
    calls = {ledger.total("all_gather").calls, ledger.total("reduce_scatter").calls,
             ledger.total().calls};
    expect_weights(trained.net, trained.plain, bits, c10::str(kind, keys, " step ", step));
  }
  return calls;
}

TEST(ShardedPipeline, GathersOnceAStep) {
  run_as_threads(4, [](World world) {
    for (const std::string& keys : {kGathered, kGathered + R"(, "reshard": false)"}) {
      const Calls calls = calls_of_a_step(world, keys);
      EXPECT_EQ(calls.gathers, kBuckets);
      // A step's gradients come in each micro-batch, bucket by bucket.
      EXPECT_EQ(calls.scatters, kBuckets * kMicroBatches);
    }
  });
}

TEST(ShardedPipeline, GathersInEachMicroBatchWhereWeightsGo) {
  run_as_threads(4, [](World world) {
    const Calls calls = calls_of_a_step(world, kGathered + R"(, "reshard": true)");
    EXPECT_GE(calls.gathers, kBuckets * kMicroBatches);
    EXPECT_LE(calls.gathers, 2 * kBuckets * kMicroBatches);
    EXPECT_EQ(calls.scatters, kBuckets * kMicroBatches);
  });
}

TEST(OneCopyPipeline, IsDistributedDataParallelBitForBitAndMovesNothing) {
  run_as_threads(4, [](World world) {
    for (const std::string& keys : {std::string(), kOneCopy, std::string(R"(, "reshard": true)")}) {
      EXPECT_EQ(calls_of_a_step(world, keys, "1f1b", /*bits=*/true).all, 0) << keys;
    }
  });
}

TEST(OneCopyPipeline, MovesNothingUnderAnySchedule) {
  for (const char* const kind :
       {"naive", "gpipe", "interleaved", "zero_bubble", "zbv", "dualpipev"}) {
    SCOPED_TRACE(kind);
    run_as_threads(4, [&](World world) { EXPECT_EQ(calls_of_a_step(world, "", kind).all, 0); });
  }
}

/// Where it accumulates on one rank.
TEST(OneCopyPipeline, OfOneStageAddsUpAsDistributedDataParallelDoes) {
  run_as_threads(2, [](World world) {
    Trained trained(world, "", "1f1b", /*stages=*/1);
    for (int step = 0; step < 3; ++step) trained.step_bit_for_bit(step);
  });
}

/// Behind it ranks without stages go on.
TEST(OneCopyPipeline, AStepThatThrowsOnOneReplicaIsTold) {
  run_as_threads(2, [](World world) {
    Trained trained(world, "", "1f1b", /*stages=*/1);
    for (int step = 0; step < 3; ++step) {
      int losses = 0;
      const std::string error = error_of([&] {
        trained.schedule.forward_backward_step(
            Tensors{rows_of(step, world.rank())}, [&](const Tensors& micro) {
              OSLO_CHECK(world.rank() == 0 || ++losses < 4 + step, "stop");
              return trained.net->forward(micro[0]).square().mean();
            });
      });
      EXPECT_THAT(error, HasSubstr(world.rank() == 1 ? "stop" : "the step of rank 1 threw"));
      trained.step_bit_for_bit(step);
    }
  });
}

TEST(OneCopyPipeline, AStageThatThrowsOnOneReplicaIsTold) {
  std::vector<std::string> errors(4);
  std::vector<int> replicas(4);
  run_as_threads(4, [&](World world) {
    Deep net = make_deep();
    ParallelModel parallel = initialize(net, config_of(""), in(world));
    const MPU& mpu = parallel.mpu();
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(kMicroBatches));
    const bool throws = mpu.rank("data") == 1 && mpu.rank("pipeline") == 1;
    int losses = 0;
    replicas[world.rank()] = mpu.rank("data");
    errors[world.rank()] = error_of([&] {
      schedule.forward_backward_step(Tensors{rows_of(0, mpu.rank("data"))},
                                     [&](const Tensors& micro) {
                                       OSLO_CHECK(!throws || ++losses < 4, "stop");
                                       return net->forward(micro[0]).square().mean();
                                     });
    });
  });
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(errors[rank], HasSubstr("stop"));
    EXPECT_EQ(errors[rank].find("threw") != std::string::npos, replicas[rank] == 0) << errors[rank];
  }
}

/// Partial sums in bfloat16 end at a half.
TEST(OneCopyPipeline, GradientsOfHalfWeightsAddUpInFp32) {
  run_as_threads(4, [](World world) {
    const auto options = torch::nn::LinearOptions(1, 1).bias(false);
    torch::nn::Sequential net{torch::nn::Linear(options), torch::nn::Linear(options)};
    net->to(torch::kBFloat16);
    {
      const torch::NoGradGuard no_grad;
      for (Tensor& each : net->parameters()) each.fill_(1);
    }
    ParallelModel parallel = initialize(net, config_of(""), in(world));
    constexpr int kMany = 512;
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(kMany));
    schedule.forward_backward_step(
        Tensors{torch::ones({kMany, 1}, torch::kBFloat16)},
        [&](const Tensors& micro) { return net->forward(micro[0]).sum(); });
    for (const Tensor& each : net->parameters()) {
      if (!is_here(each)) continue;
      EXPECT_EQ(gather_all(value_of(each.grad())).local.item<double>(), 1);
    }
  });
}

TEST(OneCopyPipeline, ACountedMeanIsThatOfAllReplicas) {
  run_as_threads(4, [](World world) {
    at::set_num_threads(1);
    Deep plain = make_deep(), net = make_deep();
    ParallelModel parallel = initialize(net, config_of(""), in(world));
    const auto some = [](int replica) {
      return rows_of(1, replica).narrow(0, 0, 16 - 8 * replica);
    };
    (plain->forward(torch::cat({some(0), some(1)})).sum() / 24).backward();
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4));
    const Tensor rows = some(parallel.mpu().rank("data"));
    schedule.forward_backward_step(Tensors{rows}, [&](const Tensors& micro) {
      return counted_mean(net->forward(micro[0]).sum(), static_cast<double>(micro[0].size(0)),
                          schedule);
    });
    for (const auto& each : net->named_parameters()) {
      if (!is_here(each.value())) continue;
      const Tensor own = gather_all(value_of(each.value().grad())).local;
      EXPECT_TRUE(torch::allclose(own, plain->named_parameters()[each.key()].grad())) << each.key();
    }
  });
}

/// A tied head, of which the first step finds that another stage than the table's uses it.
TEST(OneCopyPipeline, AWeightThatComesToAStageLaterIsSharedThere) {
  const std::string config =
      R"({"stages": {"convolution": 0, "up": 0, "norm": 0, "down": 1, "head": 0, "scale": 1},
          "model_parallelism": {"pipeline_parallel_size": 2},
          "zero_optimization": {"enabled": true, "stage": 3}})";
  run_as_threads(4, [&](World world) {
    at::set_num_threads(1);
    Net net = make_net(), plain = make_net();
    ParallelModel parallel = initialize(net, Config::parse(config), in(world));
    const int replica = parallel.mpu().rank("data"), stage = parallel.mpu().rank("pipeline");
    AdamW reference(trained(plain), adamw()), optimizer(trained(net), adamw());
    EXPECT_EQ(is_here(net->head->weight), stage == 0);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    for (int step = 0; step < 3; ++step) {
      reference.zero_grad();
      const Tensors rows = batch(step, 0, 1);
      torch::mse_loss(plain->forward(rows[0]), rows[1]).backward();
      reference.step();
      optimizer.zero_grad();
      schedule.forward_backward_step(batch(step, replica, kReplicas), [&](const Tensors& micro) {
        return torch::mse_loss(net->forward(micro[0]), micro[1]);
      });
      optimizer.step();
      expect_near(net, plain);
    }
    EXPECT_TRUE(is_here(net->head->weight));
    const auto& host = buckets_of(trained(net)).at(0)->host();
    for (const Tensor& each : trained(net)) {
      const bool lies_here = each.dim() > 0 && is_here(each);
      EXPECT_EQ(host->holds(each), lies_here) << each.sizes();
    }
  });
}

TEST(OneCopyPipeline, EvaluatesIsSavedReadAndTakenApart) {
  const test::TemporaryDirectory folder;
  run_as_threads(4, [&](World world) {
    at::set_num_threads(1);
    Deep plain = make_deep(), net = make_deep();
    ParallelModel parallel = initialize(net, config_of(""), in(world));
    torch::optim::SGD reference = sgd(plain), optimizer = sgd(net);
    const auto train = [&](int from, int to) {
      PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(kMicroBatches));
      for (int step = from; step < to; ++step) {
        step_of(schedule, net, optimizer, rows_of(step, parallel.mpu().rank("data")));
      }
    };
    for (int step = 0; step < 4; ++step) step_of_one_device(plain, reference, step);
    train(0, 2);
    parallel.save_parallelized((folder / "parts").string(), SaveOptions().optimizer(&optimizer));
    parallel.save_parallelized((folder / "merged").string(),
                               SaveOptions().optimizer(&optimizer).merge_checkpoints(true));
    for (const char* const name : {"parts", "merged"}) {
      train(7, 9);  // to be replaced
      parallel.from_parallelized((folder / name).string(), LoadOptions().optimizer(&optimizer));
      train(2, 4);
      expect_weights(net, plain, /*bits=*/true, name);
    }
    {
      const torch::NoGradGuard no_grad;
      const Tensor expected = plain->forward(rows_of(0, 0)).sum();
      PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
      const StepResult seen = schedule.forward_backward_step(
          Tensors{rows_of(0, 0)},
          [&](const Tensors& micro) { return net->forward(micro[0]).sum() * 2; },
          StepOptions().forward_only(true));
      EXPECT_NEAR(seen.loss.item<double>(), expected.item<double>(), 1e-9);
    }
    step_of_one_device(plain, reference, 4);
    optimizer.zero_grad();
    parallel.reshard(config_of("", "zbv"), ReshardOptions().optimizer(&optimizer));
    train(4, 5);
    expect_weights(net, plain, /*bits=*/false, "resharded");
    parallel.deparallelize(ReshardOptions().optimizer(&optimizer));
    expect_weights(net, plain, /*bits=*/false, "taken apart");
  });
}

}  // namespace
}  // namespace oslo::zero_test::in_stages
