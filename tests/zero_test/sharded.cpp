// Stage 3: weights of which each data rank keeps a part, beside the same DDP program.
#include <ATen/autocast_mode.h>

#include "tests/zero_test/sharded_net.h"

namespace oslo::zero_test {
namespace {

/// Ranks, and what the config says beside the stage.
class ShardedRanks : public ::testing::TestWithParam<std::tuple<int, std::string>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShardedRanks,
                         ::testing::Combine(::testing::Values(2, 3),
                                            ::testing::Values(kGathered, "")));

TEST_P(ShardedRanks, TrainsAsDdp) {
  const auto [count, more] = GetParam();
  const int ranks = count;
  run_as_threads(ranks, [&, more = more](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, sharded_config(more), in(world));
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

/// Autocast on this thread while alive.
struct HalfForward {
  HalfForward() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~HalfForward() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

/// What the config says beside the stage.
class ShardedSteps : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Gathered, ShardedSteps, ::testing::Values(kGathered));
INSTANTIATE_TEST_SUITE_P(OneCopyAHost, ShardedSteps, ::testing::Values(""));

TEST_P(ShardedSteps, UnderAutocast) {
  expect_steps_as_ddp(
      [](int, auto& ddp, Mlp& net, const Tensor& x) {
        Tensor loss;
        {
          const HalfForward half;
          loss = ddp.forward(x).square().mean();
        }
        for (const auto& buckets : buckets_of(net->parameters())) {
          EXPECT_EQ(buckets->gathered_bytes(), 0);
        }
        loss.backward();
      },
      GetParam());
}

TEST_P(ShardedSteps, InHalfByTheConfig) {
  for (const std::string& more : {std::string(), std::string(R"(, "master_weights": true)")}) {
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      Mlp other = make_mlp(), net = make_mlp();
      const std::string amp = R"(, "amp": {"enabled": true})" + more + "}";
      ParallelModel plain = initialize(other, Config::parse("{" + amp.substr(2)), in(world));
      ParallelModel parallel =
          initialize(net,
                     Config::parse(R"({"zero_optimization": {"enabled": true, "stage": 3)" +
                                   GetParam() + "}" + amp),
                     in(world));
      torch::optim::SGD reference(other->parameters(), torch::optim::SGDOptions(0.1)),
          optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
      DistributedDataParallel<Mlp> plain_ddp(other, plain.mpu().data_group()),
          ddp(net, parallel.mpu().data_group());
      for (int step = 0; step < 4; ++step) {
        reference.zero_grad();
        optimizer.zero_grad();
        plain_ddp.forward(rows_of(step, world.rank())).square().mean().backward();
        const Tensor out = ddp.forward(rows_of(step, world.rank()));
        EXPECT_EQ(buckets_of(net->parameters()).at(0)->gathered_bytes(), 0);
        out.square().mean().backward();
        expect_same(net, other, true, c10::str(more, " before step ", step));
        reference.step();
        optimizer.step();
      }
    });
  }
}

TEST_P(ShardedSteps, HalfGradientsAddUpInFull) {  // acceptance Z3
  run_as_threads(2, [&](World world) {
    struct WeightImpl : torch::nn::Module {
      WeightImpl() { w = register_parameter("w", torch::ones({3}, torch::kBFloat16)); }
      Tensor forward(const Tensor& x) { return x * w; }
      Tensor w;
    };
    struct Weight : torch::nn::ModuleHolder<WeightImpl> {
      using ModuleHolder::ModuleHolder;
    };
    Weight net;
    ParallelModel parallel = initialize(net, sharded_config(GetParam()), in(world));
    DistributedDataParallel<Weight> ddp(net, parallel.mpu().data_group());
    for (int micro = 0; micro < 512; ++micro) {
      ddp.forward(torch::ones({3}, torch::kBFloat16)).sum().backward();
    }
    EXPECT_TRUE(full_tensor(net->w.grad()).to(torch::kFloat).eq(512).all().item<bool>())
        << full_tensor(net->w.grad());
  });
}

TEST_P(ShardedSteps, LayersInAnyOrder) {  // acceptance Z5
  expect_steps_as_ddp(
      [](int i, auto& ddp, Mlp& net, const Tensor& x) {
        net->order = i % 2 == 1 ? std::vector<int>{0, 2, 0} : std::vector<int>{0, 2, 1};
        if (i == 4) net->order = {1, 0, 0, 2};
        ddp.forward(x).square().mean().backward();
      },
      GetParam());
}

TEST(Sharded, KeptUntilBackward) {
  expect_steps_as_ddp(
      [](int, auto& ddp, Mlp&, const Tensor& x) { ddp.forward(x).square().mean().backward(); },
      kGathered + R"(, "reshard": false)");
}

/// Behind a forward without gradients the weights are still whole, and nobody has `data` any more.
TEST(Sharded, WritesThroughDataThatIsGone) {
  expect_steps_as_ddp(
      [](int, auto& ddp, Mlp& net, const Tensor& x) {
        {
          const torch::NoGradGuard no_grad;
          const Tensor data = net->blocks[1]->template as<torch::nn::Linear>()->weight.data();
          ddp.forward(x);
          data.mul_(0.5);
        }
        ddp.forward(x).square().mean().backward();
      },
      R"(, "copies_per_host": 0, "reshard": false)");
}

TEST_P(ShardedSteps, SeveralBackwardsAStep) {  // acceptance Z11
  const auto step = [](int i, auto& ddp, Mlp&, const Tensor& x) {
    for (int k = 0; k <= i % 3; ++k) ddp.forward(x * (k + 1)).backward(torch::full({5, 7}, 0.25));
  };
  expect_steps_as_ddp(step, GetParam(), {}, /*bits=*/false);
}

/// `Guard`: of the evaluations.
template <typename Guard>
void expect_evaluations_between(const std::string& more) {
  expect_steps_as_ddp(
      [](int i, auto& ddp, Mlp& net, const Tensor& x) {
        {
          const Guard guard;
          net->forward(x);
        }
        ddp.forward(x).square().mean().backward();
        const Guard guard;
        if (i % 2 == 0) net->blocks[1]->template as<torch::nn::Linear>()->weight.mul_(0.5);
        net->forward(x);
      },
      more);
}

TEST_P(ShardedSteps, EvaluationBetween) {
  expect_evaluations_between<torch::NoGradGuard>(GetParam());
}

TEST_P(ShardedSteps, EvaluationInInferenceMode) {
  expect_evaluations_between<c10::InferenceMode>(GetParam());
}

TEST_P(ShardedSteps, WritesThroughViews) {
  expect_steps_as_ddp(
      [](int i, auto& ddp, Mlp& net, const Tensor& x) {
        ddp.forward(x).square().mean().backward();
        const torch::NoGradGuard no_grad;
        const Tensor& weight = net->blocks[1]->as<torch::nn::Linear>()->weight;
        if (i % 2 == 0) weight.narrow(0, 1, 4).mul_(0.5);
        weight.select(0, 2).zero_();
      },
      GetParam());
}

TEST_P(ShardedSteps, ViewsKeptOverSteps) {
  for (const bool recorded : {false, true}) {  // without a record a view is one of the parts
    const auto step = [recorded](int i, auto& ddp, Mlp& net, const Tensor& x) {
      if (i == 0) {
        const torch::AutoGradMode mode(recorded);
        net->kept = net->blocks[1]->template as<torch::nn::Linear>()->weight.narrow(1, 2, 3);
      }
      const Tensor out = ddp.forward(x);
      (out.square().mean() + (net->kept * 2).square().sum() * out.mean()).backward();
    };
    expect_steps_as_ddp(step, GetParam(), {}, /*bits=*/recorded);
  }
}

TEST_P(ShardedSteps, FrozenInBetween) {
  expect_steps_as_ddp(
      [](int, auto& ddp, Mlp&, const Tensor& x) { ddp.forward(x).square().mean().backward(); },
      GetParam(),
      [](Mlp& net) {
        net->blocks[1]->as<torch::nn::Linear>()->weight.set_requires_grad(false);
        net->blocks[2]->as<torch::nn::Linear>()->bias.set_requires_grad(false);
      });
}

TEST_P(ShardedSteps, BackwardThatThrows) {  // acceptance Z7
  expect_steps_as_ddp(
      [](int i, auto& ddp, Mlp& net, const Tensor& x) {
        if (i == 2) {
          Tensor out = ddp.forward(x);
          const auto handle = [](const Tensor&) -> Tensor { throw std::runtime_error("stop"); };
          Tensor middle = out * 1;
          middle.register_hook(handle);
          EXPECT_THROW(middle.sum().backward(), std::exception);
          for (Tensor& each : net->parameters()) each.mutable_grad().reset();
        }
        ddp.forward(x).square().mean().backward();
      },
      GetParam());
}

TEST_P(ShardedSteps, ClippedByLibTorch) {
  const auto step = [](int, auto& ddp, Mlp& net, const Tensor& x) {
    ddp.forward(x).square().sum().backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.05);
  };
  expect_steps_as_ddp(step, GetParam(), {}, /*bits=*/false);
}

TEST_P(ShardedSteps, WeightsInTheLoss) {
  expect_steps_as_ddp(
      [](int, auto& ddp, Mlp& net, const Tensor& x) {
        const Tensor out = ddp.forward(x);
        Tensor loss = out.square().mean();
        for (const Tensor& each : net->parameters()) loss = loss + each.square().sum() * out.mean();
        loss.backward();
      },
      GetParam());
}

TEST_P(ShardedSteps, OwnFunction) {
  const auto step = [](int, auto& ddp, Mlp& net, const Tensor& x) {
    (ddp.forward(x) + Scaled::apply(x, net->bias)).square().mean().backward();
  };
  expect_steps_as_ddp(step, GetParam(), {}, /*bits=*/false);
}

TEST(Sharded, GathersOncePerLayerAndDirection) {  // acceptance K11
  for (const bool reshard : {true, false}) {
    run_as_threads(2, [&](World world) {
      Mlp net = make_mlp();
      ParallelModel parallel = initialize(
          net, sharded_config(kGathered + (reshard ? "" : R"(, "reshard": false)")), in(world));
      const auto group = parallel.mpu().data_group();
      DistributedDataParallel<Mlp> ddp(net, group);
      for (int step = 0; step < 2; ++step) {
        group->ledger().clear();
        const Tensor loss = ddp.forward(rows_of(step, world.rank())).sum();
        EXPECT_EQ(group->ledger().total("all_gather").calls, 4);
        group->ledger().clear();
        loss.backward();
        // Nobody asks for the first layer's input gradient, and a bias is added: backward needs
        // neither.
        EXPECT_EQ(group->ledger().total("all_gather").calls, reshard ? 2 : 0);
        EXPECT_EQ(group->ledger().total("reduce_scatter").calls, 4);
      }
      const torch::NoGradGuard no_grad;  // nn::Linear multiplies by a view of its part then
      group->ledger().clear();
      ddp.forward(rows_of(0, world.rank()));
      EXPECT_EQ(group->ledger().total("all_gather").calls, 4);
    });
  }
}

TEST(Sharded, RanksThatPartWaysAreTold) {  // acceptance Z6
  const std::string error = error_of([] {
    run_as_threads(2, [&](World world) {
      Mlp net = make_mlp();
      ParallelModel parallel = initialize(net, sharded_config(kGathered), in(world));
      DistributedDataParallel<Mlp> ddp(net, parallel.mpu().data_group());
      net->blocks[1]->as<torch::nn::Linear>()->weight.square().sum();
      if (world.rank() == 1) net->order = {0, 2};
      ddp.forward(rows_of(0, world.rank())).sum().backward();
    });
  });
  EXPECT_THAT(error, ::testing::HasSubstr("gathers the weights of blocks."));
}

TEST_P(ShardedSteps, AGraphOfGradientsIsRefused) {
  run_as_threads(2, [&](World world) {
    Mlp net = make_mlp();
    ParallelModel parallel = initialize(net, sharded_config(GetParam()), in(world));
    const Tensor x = rows_of(0, world.rank()).requires_grad_();
    // Of inputs alone there is one.
    const Tensor slope = torch::autograd::grad({net->forward(x).sum()}, {x}, {}, true, true)[0];
    slope.square().sum().backward();
    EXPECT_TRUE(net->blocks[1]->as<torch::nn::Linear>()->weight.grad().defined());
    EXPECT_THAT(error_of([&] { net->forward(x).square().sum().backward({}, true, true); }),
                ::testing::HasSubstr("create_graph"));
  });
}

TEST(Sharded, OnlyWhatIsTrainedIsAveraged) {  // acceptance Z8
  run_as_threads(2, [](World world) {
    Mlp net = make_mlp();
    for (int i : {0, 1}) {
      net->blocks[i]->as<torch::nn::Linear>()->weight.set_requires_grad(false);
      net->blocks[i]->as<torch::nn::Linear>()->bias.set_requires_grad(false);
    }
    ParallelModel parallel = initialize(net, sharded_config(kGathered), in(world));
    const auto group = parallel.mpu().data_group();
    DistributedDataParallel<Mlp> ddp(net, group);
    ddp.forward(rows_of(0, world.rank())).sum().backward();
    const Traffic moved = group->ledger().total("reduce_scatter");
    EXPECT_EQ(moved.calls, 2);  // of the last layer, and of the bias
    // Beside the gradients travel one element a weight and eleven a layer, to each rank.
    const int rank = world.rank();
    const int64_t rows = rank == 0 ? 4 : 3;
    EXPECT_EQ(moved.elements, rows * 7 + rows + 2 + rows + 1 + 2 * 11);
    EXPECT_FALSE(net->blocks[0]->as<torch::nn::Linear>()->weight.grad().defined());
  });
}

TEST(Sharded, OneReplicaIsAnOrdinaryProgram) {  // acceptance Z4
  run_as_threads(1, [](World world) {
    Mlp plain = make_mlp(), net = make_mlp();
    ParallelModel parallel = initialize(net, sharded_config(), in(world));
    DistributedDataParallel<Mlp> ddp(net, parallel.mpu().data_group());
    for (int micro = 0; micro < 16; ++micro) {
      ddp.forward(rows_of(micro, 0)).square().mean().backward();
      plain->forward(rows_of(micro, 0)).square().mean().backward();
    }
    expect_same(net, plain, true, "16 micro-batches");
    EXPECT_EQ(parallel.mpu().data_group()->ledger().total().calls, 0);
  });
}

TEST_P(ShardedSteps, WritesOfListsAndToOut) {
  expect_steps_as_ddp(
      [](int i, auto& ddp, Mlp& net, const Tensor& x) {
        ddp.forward(x).square().mean().backward();
        const torch::NoGradGuard no_grad;
        Tensors weights, gradients, wholes;
        for (const Tensor& each : net->parameters()) {
          weights.push_back(each);
          gradients.push_back(each.grad());
          wholes.push_back(torch::full(full_tensor(each).sizes(), 0.25));
        }
        at::_foreach_mul_(weights, torch::tensor(0.5));
        at::_foreach_mul_(gradients, torch::tensor(0.5));
        at::_foreach_add_(weights, wholes);
        at::_foreach_lerp_(weights, wholes, 0.125);
        Tensor out = weights[0];
        torch::mul_out(out, weights[0], wholes[0]);
        torch::mul_out(out, wholes[0], wholes[0]);
        if (i == 3) at::_foreach_copy_(weights, wholes);
      },
      GetParam());
}

TEST(Sharded, MemoryThatOthersHaveIsRefused) {
  run_as_threads(2, [](World world) {
    Mlp net = make_mlp();
    net->register_buffer("copy", net->blocks[0]->as<torch::nn::Linear>()->weight.detach());
    EXPECT_THAT(error_of([&] { initialize(net, sharded_config(), in(world)); }),
                ::testing::HasSubstr("memory"));
  });
}

}  // namespace
}  // namespace oslo::zero_test
