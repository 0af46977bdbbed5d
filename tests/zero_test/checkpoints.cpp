// A checkpoint of shared states, or of parts of weights, has what the plain optimizer's would have,
// and fits every grid.
#include "tests/support/temporary_directory.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

using ::testing::HasSubstr;

struct Written {
  int ranks;
  int stage;  ///< 0: by a plain optimizer
  std::string config;
  int shards = 0;  ///< data ranks that have the weights once; 0: all
};

void PrintTo(const Written& one, std::ostream* out) {
  *out << one.ranks << " stage " << one.stage << " " << one.config << " in groups of "
       << one.shards;
}

class ZeroCheckpoints : public ::testing::TestWithParam<std::tuple<Written, Written>> {};

TEST_P(ZeroCheckpoints, GoOnInAnyOtherGrid) {
  const auto& [first, second] = GetParam();
  const test::TemporaryDirectory folder;
  Net plain = make_net();
  AdamW reference(trained(plain), adamw());
  train(plain, reference, 0, 6);
  const auto with = [&](const Written& one, const auto& run) {
    run_as_threads(one.ranks, [&](World world) {
      at::set_num_threads(1);
      Net net = make_net();
      ParallelModel parallel =
          initialize(net, zero_config(one.config, std::max(one.stage, 1), one.shards), in(world));
      if (one.stage == 1) {
        ZeroOptimizer<AdamW> optimizer(parallel, trained(net), adamw());
        run(parallel, net, optimizer);
      } else {
        AdamW optimizer(trained(net), adamw());
        run(parallel, net, optimizer);
      }
    });
  };
  with(first, [&](ParallelModel& parallel, Net& net, AdamW& optimizer) {
    train(net, optimizer, 0, 3);
    parallel.save_parallelized((folder / "saved").string(), SaveOptions().optimizer(&optimizer));
    train(net, optimizer, 3, 6);  // a save changes nothing
    expect_near(net, plain);
  });
  with(second, [&](ParallelModel& parallel, Net& net, AdamW& optimizer) {
    train(net, optimizer, 7, 9);  // to be replaced
    parallel.from_parallelized((folder / "saved").string(), LoadOptions().optimizer(&optimizer));
    train(net, optimizer, 3, 6);
    expect_near(net, plain);
  });
}

INSTANTIATE_TEST_SUITE_P(Pairs, ZeroCheckpoints,
                         ::testing::Values(std::tuple(Written{2, 1, ""}, Written{3, 1, ""}),
                                           std::tuple(Written{3, 1, ""}, Written{1, 0, ""}),
                                           std::tuple(Written{2, 0, ""}, Written{2, 1, ""}),
                                           std::tuple(Written{4, 1, kTensor}, Written{2, 1, ""}),
                                           std::tuple(Written{3, 1, ""}, Written{4, 1, kTensor}),
                                           std::tuple(Written{2, 3, ""}, Written{3, 3, ""}),
                                           std::tuple(Written{3, 3, ""}, Written{1, 0, ""}),
                                           std::tuple(Written{2, 0, ""}, Written{2, 3, ""}),
                                           std::tuple(Written{4, 3, kTensor}, Written{2, 3, ""}),
                                           std::tuple(Written{3, 3, ""}, Written{4, 3, kTensor}),
                                           std::tuple(Written{4, 3, "", 2}, Written{3, 3, ""}),
                                           std::tuple(Written{6, 3, "", 3}, Written{1, 0, ""}),
                                           std::tuple(Written{2, 0, ""}, Written{6, 3, "", 2}),
                                           std::tuple(Written{8, 3, kTensor, 2},
                                                      Written{4, 3, "", 2})));

TEST(Zero, AnArchiveHasARanksShare) {
  const test::TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net(), other = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    ParallelModel second = initialize(other, zero_config(), in(world));
    AdamW reference(trained(plain), adamw());
    train(plain, reference, 0, 6);
    ZeroOptimizer<AdamW> optimizer(parallel, trained(net), adamw());
    ZeroOptimizer<AdamW> loaded(second, trained(other), adamw());
    train(net, optimizer, 0, 3);
    const std::string file = (folder / c10::str("optimizer", world.rank())).string();
    torch::save(optimizer, file);
    {
      const torch::NoGradGuard no_grad;
      const Tensors from = trained(net), to = trained(other);
      for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
    }
    torch::load(loaded, file);
    train(other, loaded, 3, 6);
    expect_equal(other, plain, "loaded");
  });
}

TEST(Zero, ARankThatCannotSaveEndsTheSaveOnAll) {
  const test::TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    Net net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    ZeroOptimizer<AdamW> optimizer(parallel, trained(net), adamw());
    train(net, optimizer, 0, 1);
    const auto save = [&] {
      parallel.save_parallelized((folder / "saved").string(), SaveOptions().optimizer(&optimizer));
    };
    Tensors& stepped = optimizer.param_groups()[0].params();
    if (world.rank() == 1) stepped.push_back(torch::ones({3}).set_requires_grad(true));
    EXPECT_THAT(error_of(save), HasSubstr("rank 1"));
    if (world.rank() == 1) stepped.pop_back();
    save();
  });
}

TEST(Zero, ReshardingTakesTheStatesAlong) {
  run_as_threads(4, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    AdamW reference(trained(plain), adamw());
    train(plain, reference, 0, 6);
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    ZeroOptimizer<AdamW> optimizer(parallel, trained(net), adamw());
    train(net, optimizer, 0, 2);
    parallel.reshard(zero_config(kTensor), ReshardOptions().optimizer(&optimizer));
    train(net, optimizer, 2, 4);
    parallel.deparallelize(ReshardOptions().optimizer(&optimizer));
    train(net, optimizer, 4, 6);
    expect_near(net, plain);
  });
}

TEST(Zero, ReshardingTakesSharedGradientsAlong) {
  run_as_threads(4, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    AdamW reference(trained(plain), adamw());
    ParallelModel parallel = initialize(net, zero_config("", 2), in(world));
    ZeroOptimizer<AdamW> optimizer(parallel, trained(net), adamw());
    const auto backward = [&](int step) {
      const int replicas = parallel.mpu().get_data_parallel_world_size();
      DistributedDataParallel<Net> ddp(net, parallel.mpu().data_group());
      const Tensors all = batch(step, 0, 1);
      const Tensors rows = batch(step, parallel.mpu().get_data_parallel_rank(), replicas);
      torch::mse_loss(plain->forward(all[0]), all[1]).backward();
      torch::mse_loss(ddp.forward(rows[0]), rows[1]).backward();
    };
    const auto step = [&] {
      reference.step();
      optimizer.step();
      reference.zero_grad();
      optimizer.zero_grad();
      expect_near(net, plain);
    };
    backward(0);
    step();
    backward(1);
    parallel.reshard(zero_config(kTensor, 2), ReshardOptions().optimizer(&optimizer));
    backward(2);
    step();
    backward(3);
    parallel.deparallelize(ReshardOptions().optimizer(&optimizer));
    EXPECT_FALSE(is_placed(net->up->weight.grad()));
    step();
  });
}

TEST(Zero, ReshardingWithoutTheOptimizerIsRefusedAtTheNextStep) {
  run_as_threads(4, [&](World world) {
    at::set_num_threads(1);
    Net net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    ZeroOptimizer<AdamW> optimizer(parallel, trained(net), adamw());
    train(net, optimizer, 0, 2);
    parallel.reshard(zero_config(kTensor));
    EXPECT_THAT(error_of([&] { train(net, optimizer, 2, 3); }),
                HasSubstr("pass the optimizer along, as ReshardOptions().optimizer(&optimizer)"));
  });
}

struct WeightNormImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    linear->weight = v * (g / v.norm(2, 1, true));
    return linear->forward(x);
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(7, 7));
  Tensor v = register_parameter("v", linear->weight.detach().clone());
  Tensor g = register_parameter("g", torch::ones({7, 1}));
};
TORCH_MODULE(WeightNorm);

/// What an evaluation leaves in the place of a weight is no weight.
TEST(ZeroCheckpoints, OfAComputedWeightBehindAnEvaluation) {
  const test::TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    const auto make = [] { return test::make_seeded(3, [] { return WeightNorm(); }); };
    WeightNorm net = make(), plain = make();
    const Config config = zero_config("", 3, 0, R"(, "copies_per_host": 0)");
    ParallelModel parallel = initialize(net, config, in(world));
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::ones({2, 7}), expected = plain->forward(x);
    EXPECT_TRUE(torch::allclose(net->forward(x), expected));
    parallel.save_parallelized((folder / "saved").string());
    net->v.zero_();
    parallel.from_parallelized((folder / "saved").string());
    EXPECT_TRUE(torch::allclose(net->forward(x), expected));
  });
}

}  // namespace
}  // namespace oslo::zero_test
