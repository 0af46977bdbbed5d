// Hybrid shards: groups of data ranks that have the weights once each, beside the same DDP program.
#include "tests/zero_test/sharded_net.h"

namespace oslo::zero_test::hybrid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Config hybrid_config(int shards, const std::string& keys) {
  return zero_config("", 3, shards, keys);
}

bool near(const Tensor& seen, const Tensor& plain) {
  return torch::allclose(full_tensor(seen), plain, 1e-10, 1e-12);
}

/// What copies of a part have is the same to the last bit.
void expect_copies_alike(const Tensor& part, Group& copies, const std::string& what) {
  const Tensor own = local_tensor(part).detach().reshape({-1}).clone();
  const std::vector<int64_t> sizes(copies.size(), own.numel());
  const Tensor all = copies.all_gather(own, 0, sizes);
  for (const Tensor& each : all.chunk(copies.size())) {
    EXPECT_TRUE(own.numel() == 0 || torch::equal(each, own)) << what;
  }
}

struct Groups {
  int ranks, shards;
};

class HybridRanks : public ::testing::TestWithParam<std::tuple<Groups, std::string>> {};
INSTANTIATE_TEST_SUITE_P(RanksShardsAndKeys, HybridRanks,
                         ::testing::Combine(::testing::Values(Groups{4, 2}, Groups{6, 3},
                                                              Groups{6, 2}, Groups{3, 1},
                                                              Groups{3, 3}),
                                            ::testing::Values(kGathered, "")));

/// Weights that each group gathers, and one copy of them in each.
class Hybrid : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Keys, Hybrid, ::testing::Values(kGathered, ""));

/// A step has one backward pass, or two that are synchronised, or two of which the last one is.
TEST_P(HybridRanks, TrainsAsDdp) {
  const auto& [groups, keys] = GetParam();
  run_as_threads(groups.ranks, [&, keys = keys](World world) {
    const auto [ranks, shards] = std::get<0>(GetParam());
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, hybrid_config(shards, keys), in(world));
    const MPU& mpu = parallel.mpu();
    const bool divided = shards > 1 && shards < ranks;
    AdamW reference(plain->parameters(), adamw()), optimizer(net->parameters(), adamw());
    DistributedDataParallel<Net> plain_ddp(plain, mpu.data_group()), ddp(net, mpu.data_group());
    const auto backward = [&](auto& model, int step) {
      const Tensors rows = batch(step, world.rank(), ranks);
      const Tensor loss = torch::mse_loss(model.forward(rows[0]), rows[1]);
      loss.backward();
      return loss;
    };
    const auto pass = [&](auto& model, int step) {
      if (step % 3 == 1) backward(model, step + 20);
      if (step % 3 == 2) {
        const auto guard = model.no_sync();
        backward(model, step + 20);
      }
      return backward(model, step);
    };
    for (int step = 0; step < 10; ++step) {
      reference.zero_grad();
      optimizer.zero_grad();
      const Tensor expected = pass(plain_ddp, step), loss = pass(ddp, step);
      EXPECT_TRUE(near(loss, expected)) << step;
      const Tensors own = trained(net), others = trained(plain);
      for (size_t i = 0; i < own.size(); ++i) {
        EXPECT_TRUE(near(own[i].grad(), others[i].grad())) << step << ": gradient " << i;
      }
      torch::nn::utils::clip_grad_norm_(trained(plain), 0.5);
      torch::nn::utils::clip_grad_norm_(trained(net), 0.5);
      reference.step();
      optimizer.step();
      for (size_t i = 0; i < own.size(); ++i) {
        EXPECT_TRUE(near(own[i], others[i])) << step << ": weight " << i;
        if (!divided) continue;
        expect_copies_alike(own[i], *mpu.group("data_copies"), c10::str(step, ": weight ", i));
      }
    }
    const int64_t part = net->up->weight.numel();
    EXPECT_EQ(part<plain->up->weight.numel(), shards> 1);
    EXPECT_LE(part, (13 + shards - 1) / shards * 5);
  });
}

struct WeightImpl : torch::nn::Module {
  WeightImpl() { w = register_parameter("w", torch::ones({3})); }
  Tensor forward(const Tensor& x) { return x * w; }
  Tensor w;
};
TORCH_MODULE(Weight);

TEST_P(Hybrid, CopiesAreAveragedAfterAddingUp) {  // acceptance Z2
  run_as_threads(4, [&](World world) {
    for (const bool quiet : {true, false}) {
      Weight net;
      ParallelModel parallel = initialize(net, hybrid_config(2, GetParam()), in(world));
      const MPU& mpu = parallel.mpu();
      DistributedDataParallel<Weight> ddp(net, mpu.data_group());
      Ledger& copies = mpu.group("data_copies")->ledger();
      const auto backward = [&](int k) {
        ddp.forward(torch::full({3}, world.rank() + 10.0 * k)).sum().backward();
      };
      if (quiet) {
        const auto guard = ddp.no_sync();
        backward(0);
        EXPECT_EQ(copies.total().calls, 0);
        // Of this rank's group.
        EXPECT_EQ(full_tensor(net->w.grad()).max().item<double>(), world.rank() < 2 ? 0.5 : 2.5);
      } else {
        backward(0);
      }
      backward(1);
      EXPECT_TRUE(full_tensor(net->w.grad()).eq(13.0).all().item<bool>())
          << full_tensor(net->w.grad());
      EXPECT_EQ(copies.total().calls, quiet ? 1 : 2);
    }
  });
}

TEST(HybridShards, MovesWhatItSays) {
  run_as_threads(4, [](World world) {
    Mlp net = make_mlp();
    ParallelModel parallel = initialize(net, hybrid_config(2, kGathered), in(world));
    const MPU& mpu = parallel.mpu();
    EXPECT_THAT(mpu.group("data_shards")->ranks(),
                ::testing::ElementsAre(world.rank() / 2 * 2, world.rank() / 2 * 2 + 1));
    EXPECT_THAT(mpu.group("data_copies")->ranks(),
                ::testing::ElementsAre(world.rank() % 2, world.rank() % 2 + 2));
    Ledger &data = mpu.data_group()->ledger(), &shards = mpu.group("data_shards")->ledger(),
           &copies = mpu.group("data_copies")->ledger();
    DistributedDataParallel<Mlp> ddp(net, mpu.data_group());
    const int64_t rows = world.rank() % 2 == 0 ? 4 : 3, layer = rows * 7 + rows;
    for (int step = 0; step < 2; ++step) {
      for (Ledger* each : {&data, &shards, &copies}) each->clear();
      {
        const auto guard = ddp.no_sync();
        ddp.forward(rows_of(step, world.rank())).sum().backward();
      }
      EXPECT_EQ(shards.total("all_gather").calls, 4 + 2);
      EXPECT_EQ(shards.total("reduce_scatter").calls, 4);
      // Beside the gradients travel one element a weight and eleven a layer.
      EXPECT_EQ(shards.total("reduce_scatter").elements, 3 * (layer + 2) + rows + 1 + 4 * 11);
      EXPECT_EQ(copies.total().calls, 0);
      ddp.forward(rows_of(step, world.rank())).sum().backward();
      EXPECT_EQ(shards.total().calls, 2 * (4 + 2 + 4));
      EXPECT_EQ(copies.total().calls, 1);
      EXPECT_EQ(copies.total("all_reduce").calls, 1);
      EXPECT_EQ(data.total().calls, 0);
      // The ring's formula: (n - 1) / n of the elements, twice.
      EXPECT_EQ(copies.total("all_reduce").elements, 3 * layer + rows + 7);
    }
  });
}

/// The two groups skip different layers; inside a group ranks gather the same.
TEST_P(Hybrid, GroupsMayTakeOtherWays) {
  run_as_threads(4, [&](World world) {
    at::set_num_threads(1);
    Mlp plain = make_mlp(), net = make_mlp();
    ParallelModel parallel = initialize(net, hybrid_config(2, GetParam()), in(world));
    const auto options = DDPOptions().find_unused_parameters(true);
    DistributedDataParallel<Mlp> plain_ddp(plain, parallel.mpu().data_group(), options),
        ddp(net, parallel.mpu().data_group(), options);
    for (int step = 0; step < 4; ++step) {
      const bool first = world.rank() < 2;
      std::vector<int> order{0, 1, 2};
      if (step == 1) order = first ? std::vector<int>{0, 2} : std::vector<int>{2, 1, 1};
      if (step == 2) order = first ? std::vector<int>{0, 2} : std::vector<int>{2, 0};
      plain->order = net->order = order;
      for (Mlp* each : {&plain, &net}) {
        for (Tensor& parameter : (*each)->parameters()) parameter.mutable_grad().reset();
      }
      plain_ddp.forward(rows_of(step, world.rank())).square().mean().backward();
      ddp.forward(rows_of(step, world.rank())).square().mean().backward();
      expect_same(net, plain, false, c10::str("step ", step));
    }
  });
}

TEST_P(Hybrid, GradientsThatComeByOtherWays) {
  run_as_threads(4, [&](World world) {
    at::set_num_threads(1);
    Mlp plain = make_mlp(), net = make_mlp();
    ParallelModel parallel = initialize(net, hybrid_config(2, GetParam()), in(world));
    DistributedDataParallel<Mlp> plain_ddp(plain, parallel.mpu().data_group()),
        ddp(net, parallel.mpu().data_group());
    const auto pass = [&](auto& model, Mlp& own, int step) {
      const Tensor x = rows_of(step, world.rank());
      Tensor loss = (model.forward(x) + Scaled::apply(x, own->bias)).square().mean();
      for (const Tensor& each : own->parameters()) loss = loss + each.square().sum() * x.mean();
      loss.backward();
    };
    for (int step = 0; step < 3; ++step) {
      pass(plain_ddp, plain, step);
      pass(ddp, net, step);
      expect_same(net, plain, false, c10::str("step ", step));
    }
  });
}

TEST_P(Hybrid, WhoeverLooksSeesTheAverageOfAll) {
  run_as_threads(4, [&](World world) {
    at::set_num_threads(1);
    Weight net;
    ParallelModel parallel = initialize(net, hybrid_config(2, GetParam()), in(world));
    DistributedDataParallel<Weight> ddp(net, parallel.mpu().data_group());
    const auto loss = [&] { return ddp.forward(torch::full({3}, world.rank() * 1.0)).sum(); };
    const auto is = [](const Tensor& gradient, double value) {
      return full_tensor(gradient).eq(value).all().item<bool>();
    };
    EXPECT_TRUE(is(torch::autograd::grad({loss()}, {net->w})[0], 1.5));
    EXPECT_FALSE(net->w.grad().defined());
    Tensor heard;
    net->w.register_hook([&](const Tensor& gradient) {
      heard = gradient;
      return gradient.square();  // of the average, on all ranks
    });
    loss().backward();
    EXPECT_TRUE(is(heard, 1.5)) << full_tensor(heard);
    EXPECT_TRUE(is(net->w.grad(), 2.25)) << full_tensor(net->w.grad());
    // Of what is no weight, replicas' gradients are averaged too.
    const Tensor other = net->w.grad().clone().requires_grad_();
    (other * world.rank()).sum().backward();
    EXPECT_TRUE(is(other.grad(), 1.5)) << full_tensor(other.grad());
  });
}

TEST_P(Hybrid, MeanOverUnequalCounts) {
  run_as_threads(4, [&](World world) {
    Weight net;
    ParallelModel parallel = initialize(net, hybrid_config(2, GetParam()), in(world));
    DistributedDataParallel<Weight> ddp(net, parallel.mpu().data_group());
    // One element of w, which rank 0 and its copy have; 5 + 1 + 2 + 4 tokens, 5 + 7 + 6 + 6 in all.
    const std::vector<std::pair<int, double>> tokens{{5, 1}, {1, 7}, {2, 3}, {4, 1.5}};
    const auto [count, value] = tokens[world.rank()];
    Tensor x = torch::zeros({count, 3});
    x.select(1, 0).fill_(value);
    const auto pass = [&] { counted_mean(ddp.forward(x).sum(), count, ddp).backward(); };
    const auto first = [&] { return full_tensor(net->w.grad())[0].item<double>(); };
    for (int pass_number = 0; pass_number < 3; ++pass_number) {
      {
        const auto guard = ddp.no_sync();
        pass();
      }
      pass();
      EXPECT_NEAR(first(), 2.0, 1e-6) << pass_number;
      // Written in between: a part of nothing but zeros is not a gradient of nothing.
      if (pass_number == 1) parallel.clip_grad_norm_(1e9), net->w.grad().mul_(1);
    }
  });
}

TEST_P(Hybrid, AScalerSkipsTheStepOnAllRanks) {
  run_as_threads(4, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, hybrid_config(2, GetParam()), in(world));
    DistributedDataParallel<Net> ddp(net, parallel.mpu().data_group());
    AdamW reference(trained(plain), adamw()), optimizer(trained(net), adamw());
    GradScaler scaler(parallel, GradScalerOptions().init_scale(8));
    for (int step = 0; step < 3; ++step) {
      const Tensors all = batch(step, 0, 1), rows = batch(step, world.rank(), 4);
      reference.zero_grad();
      torch::mse_loss(plain->forward(all[0]), all[1]).backward();
      optimizer.zero_grad();
      scaler.scale(torch::mse_loss(ddp.forward(rows[0]), rows[1])).backward();
      const bool bad = step == 1;
      if (bad && world.rank() == 3) {
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

TEST_P(Hybrid, GradientsAddUpInFull) {  // as acceptance Z3
  run_as_threads(4, [&](World world) {
    Weight net;
    net->to(torch::kBFloat16);
    ParallelModel parallel = initialize(net, hybrid_config(2, GetParam()), in(world));
    DistributedDataParallel<Weight> ddp(net, parallel.mpu().data_group());
    for (int micro = 0; micro < 512; ++micro) {
      ddp.forward(torch::ones({3}, torch::kBFloat16)).sum().backward();
    }
    EXPECT_TRUE(full_tensor(net->w.grad()).to(torch::kFloat).eq(512).all().item<bool>())
        << full_tensor(net->w.grad());
  });
}

TEST(HybridShards, KeysThatDoNotFitAreRefused) {
  const auto error = [](const std::string& keys) {
    std::vector<std::string> errors(4);
    run_as_threads(4, [&](World world) {
      Mlp net = make_mlp();
      errors[world.rank()] = error_of([&] {
        initialize(net, Config::parse(R"({"zero_optimization": {"enabled": true, )" + keys + "}}"),
                   in(world));
      });
    });
    return errors;
  };
  EXPECT_THAT(error(R"("stage": 3, "shard_size": 3)"),
              ::testing::Each(AllOf(HasSubstr("'zero_optimization.shard_size' = 3"),
                                    HasSubstr("the 4 data ranks"))));
  EXPECT_THAT(error(R"("stage": 3, "shard_size": 8)"),
              ::testing::Each(HasSubstr("'zero_optimization.shard_size' = 8")));
  for (const char* stage : {"1", "2"}) {
    const std::string at = std::string(R"("stage": )") + stage;
    EXPECT_THAT(error(at + R"(, "shard_size": 2)"),
                ::testing::Each(AllOf(HasSubstr("shard_size"), HasSubstr("set the stage to 3"))));
    EXPECT_THAT(error(at + R"(, "reshard": false)"),
                ::testing::Each(AllOf(HasSubstr("reshard"), HasSubstr("set the stage to 3"))));
  }
}

}  // namespace
}  // namespace oslo::zero_test::hybrid
