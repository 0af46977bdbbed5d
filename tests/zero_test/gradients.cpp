// Gradients that data replicas share out: what stands in `.grad`, what it takes, what moves.
#include <atomic>
#include <optional>

#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

using ::testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

/// Stage, ranks.
class ZeroGradients : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  int stage() const { return GetParam().first; }
  int ranks() const { return GetParam().second; }
};
INSTANTIATE_TEST_SUITE_P(StageAndRanks, ZeroGradients,
                         ::testing::Values(std::pair(1, 2), std::pair(2, 2), std::pair(2, 3)));

/// A net of its own beside a plain one, each behind DDP, with an optimizer.
struct Pair {
  Pair(World world, int stage, const DDPOptions& options = {})
      : parallel(initialize(net, zero_config("", stage), in(world))),
        rank(world.rank()),
        ranks(world.size()),
        reference(trained(plain), adamw()),
        optimizer(parallel, trained(net), adamw()),
        plain_ddp(plain, parallel.mpu().data_group(), options),
        ddp(net, parallel.mpu().data_group(), options) {
    at::set_num_threads(1);
  }

  Tensor loss(DistributedDataParallel<Net>& of, int step) const {
    const Tensors rows = batch(step, rank, ranks);
    return torch::mse_loss(of.forward(rows[0]), rows[1]);
  }
  void backward(int step) {
    loss(plain_ddp, step).backward();
    loss(ddp, step).backward();
  }
  void zero_grad(bool to_none = true) {
    reference.zero_grad(to_none);
    optimizer.zero_grad(to_none);
  }
  void step() {
    reference.step();
    optimizer.step();
  }
  /// Both rows and numbers that all have.
  void expect_gradients(bool to_the_bit, const std::string& what) const {
    const Tensors mine = trained(net), theirs = trained(plain);
    for (size_t i = 0; i < mine.size(); ++i) {
      const Tensor all = full_tensor(mine[i].grad());
      EXPECT_TRUE(to_the_bit ? torch::equal(all, theirs[i].grad())
                             : torch::allclose(all, theirs[i].grad(), 1e-12, 1e-14))
          << what << ": " << i;
    }
  }

  Net plain = make_net(), net = make_net();
  ParallelModel parallel;
  int rank, ranks;
  AdamW reference;
  ZeroOptimizer<AdamW> optimizer;
  DistributedDataParallel<Net> plain_ddp, ddp;
};

TEST_P(ZeroGradients, AreTheOwnersRowsOnEveryRank) {
  run_as_threads(ranks(), [&](World world) {
    Pair pair(world, stage());
    pair.backward(0);
    pair.expect_gradients(true, "after backward");
    for (const Tensor& each : trained(pair.net)) {
      if (each.dim() == 0) continue;
      EXPECT_TRUE(is_placed(each.grad()));
      EXPECT_FALSE(is_placed(each));
      EXPECT_LE(each.grad().size(0), each.size(0) / pair.ranks + 1);
    }
  });
}

TEST_P(ZeroGradients, HaveGlobalNorms) {
  run_as_threads(ranks(), [&](World world) {
    Pair pair(world, stage());
    pair.backward(0);
    const double whole = clip_grad_norm_(trained(pair.plain), INFINITY);
    EXPECT_NEAR(pair.parallel.clip_grad_norm_(INFINITY), whole, 1e-12 * whole);
    EXPECT_NEAR(pair.net->up->weight.grad().norm().item<double>(),
                pair.plain->up->weight.grad().norm().item<double>(), 1e-12);
    EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(trained(pair.net), whole / 2), whole,
                1e-12 * whole);
    torch::nn::utils::clip_grad_norm_(trained(pair.plain), whole / 2);
    pair.expect_gradients(false, "clipped");
    pair.parallel.clip_grad_norm_(whole / 4);
    clip_grad_norm_(trained(pair.plain), whole / 4);
    pair.expect_gradients(false, "clipped again");
  });
}

TEST_P(ZeroGradients, OfSeveralPassesAddUp) {
  run_as_threads(ranks(), [&](World world) {
    Pair pair(world, stage());
    for (int step = 0; step < 5; ++step) {
      pair.zero_grad(/*to_none=*/step % 2 == 0);
      for (int pass = 0; pass <= step % 3; ++pass) {
        pair.backward(7 * step + pass);
        // A first one to the bit; DDP averages what is there once more with the next one.
        pair.expect_gradients(pass + step == 0, c10::str("step ", step, ", pass ", pass));
      }
      pair.step();
      expect_near(pair.net, pair.plain);
    }
  });
}

TEST_P(ZeroGradients, StayWholeUnderNoSync) {
  run_as_threads(ranks(), [&](World world) {
    Pair pair(world, stage());
    for (int step = 0; step < 3; ++step) {
      pair.zero_grad();
      // Before, between and behind passes that exchange.
      for (const bool exchanges : {false, true, false, false, true}) {
        std::optional<NoSyncGuard> mine, theirs;
        if (!exchanges) mine.emplace(pair.ddp.core()), theirs.emplace(pair.plain_ddp.core());
        pair.backward(step);
        EXPECT_EQ(is_placed(pair.net->up->weight.grad()), exchanges);
      }
      pair.expect_gradients(false, c10::str("step ", step));
      pair.step();
    }
    expect_near(pair.net, pair.plain);
  });
}

TEST_P(ZeroGradients, MayBeAssigned) {
  run_as_threads(ranks(), [&](World world) {
    Pair pair(world, stage());
    for (int step = 0; step < 3; ++step) {
      pair.zero_grad();
      for (int pass = 0; pass < 2; ++pass) {
        pair.backward(step + pass);
        for (Net* each : {&pair.net, &pair.plain}) {
          for (const Tensor& parameter : trained(*each)) {
            const torch::NoGradGuard no_grad;
            parameter.mutable_grad() = parameter.grad() * 0.5;
          }
        }
      }
      pair.expect_gradients(false, "halved");
      pair.step();
      expect_near(pair.net, pair.plain);
    }
  });
}

TEST_P(ZeroGradients, WithWhatIsThereBeforeTheOptimizerIs) {
  run_as_threads(ranks(), [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, zero_config("", stage()), in(world));
    DistributedDataParallel<Net> plain_ddp(plain, parallel.mpu().data_group()),
        ddp(net, parallel.mpu().data_group());
    const auto backward = [&](int step) {
      const Tensors rows = batch(step, world.rank(), ranks());
      torch::mse_loss(plain_ddp.forward(rows[0]), rows[1]).backward();
      torch::mse_loss(ddp.forward(rows[0]), rows[1]).backward();
    };
    backward(0);
    EXPECT_FALSE(is_placed(net->up->weight.grad()));
    {
      AdamW reference(trained(plain), adamw());
      ZeroOptimizer<AdamW> optimizer(parallel, trained(net), adamw());
      for (int step = 1; step < 4; ++step) {
        if (step > 1) backward(step);
        reference.step();
        optimizer.step();
        expect_equal(net, plain, c10::str("step ", step));
        reference.zero_grad();
        optimizer.zero_grad();
      }
    }
    // And as before without it.
    backward(5);
    EXPECT_FALSE(is_placed(net->up->weight.grad()));
    EXPECT_TRUE(torch::equal(net->up->weight.grad(), plain->up->weight.grad()));
  });
}

TEST_P(ZeroGradients, OfWholeTensorsAreTheirOwners) {
  run_as_threads(ranks(), [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, zero_config("", stage()), in(world));
    ByNorm reference(trained(plain), SGDOptions(0.1));
    ZeroOptimizer<ByNorm> optimizer(parallel, trained(net), SGDOptions(0.1));
    DistributedDataParallel<Net> plain_ddp(plain, parallel.mpu().data_group()),
        ddp(net, parallel.mpu().data_group());
    for (int step = 0; step < 4; ++step) {
      const Tensors rows = batch(step, world.rank(), ranks());
      reference.zero_grad();
      optimizer.zero_grad();
      torch::mse_loss(plain_ddp.forward(rows[0]), rows[1]).backward();
      torch::mse_loss(ddp.forward(rows[0]), rows[1]).backward();
      const int64_t here = net->up->weight.grad().size(0);
      EXPECT_TRUE(here == 0 || here == 13);
      reference.step();
      optimizer.step();
      expect_equal(net, plain, c10::str("step ", step));
      EXPECT_EQ(net->up->weight.grad().size(0), here);
    }
  });
}

/// Throws where its gradient passes by.
struct Throws : torch::autograd::Function<Throws> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list) {
    throw std::runtime_error("thrown");
  }
};

TEST_P(ZeroGradients, OfAPassThatThrewAreForgotten) {
  run_as_threads(ranks(), [&](World world) {
    Pair pair(world, stage(), DDPOptions().bucket_cap_mb(1e-4));
    for (int step = 0; step < 4; ++step) {
      if (step == 2) {
        pair.optimizer.zero_grad();
        const Tensors rows = batch(9, pair.rank, pair.ranks);
        const Tensor y = pair.ddp.forward(rows[0]);
        // Of the head's gradients some are under way when it throws.
        const Tensor loss =
            torch::mse_loss(y, rows[1]) + Throws::apply(pair.net->convolution->weight).sum() * 0;
        EXPECT_THROW(loss.backward(), std::runtime_error);
      }
      pair.zero_grad();
      pair.backward(step);
      pair.expect_gradients(true, c10::str("step ", step));
      pair.step();
      expect_equal(pair.net, pair.plain, c10::str("step ", step));
    }
  });
}

struct SumImpl : torch::nn::Module {
  SumImpl() { weight = register_parameter("weight", torch::zeros({128}, torch::kBFloat16)); }
  Tensor forward() { return weight.sum(); }
  Tensor weight;
};
TORCH_MODULE(Sum);

TEST(Zero, HalvesAddUpInFp32UnlessTheConfigSaysOtherwise) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    for (const bool wide : {true, false}) {
      Sum net;
      const char* const type = wide ? "" : R"(, "reduce_dtype": "bfloat16")";
      ParallelModel parallel = initialize(net, zero_config(type, 2), in(world));
      ZeroOptimizer<SGD> optimizer(parallel, SGDOptions(1));
      DistributedDataParallel<Sum> ddp(net, parallel.mpu().data_group());
      for (int micro = 0; micro < 512; ++micro) ddp.forward().backward();
      const Tensor sum = full_tensor(net->weight.grad());
      EXPECT_EQ(sum.scalar_type(), wide ? torch::kFloat : torch::kBFloat16);
      EXPECT_EQ(sum.max().item<double>(), wide ? 512 : 256);
      optimizer.step();
      EXPECT_EQ(net->weight.min().item<double>(), wide ? -512 : -256);
    }
  });
}

/// A step moves what an all-reduce of the gradients would.
TEST(Zero, AStepMovesWhatAnAllReduceDoes) {
  std::atomic<int64_t> bytes = 0;
  int64_t whole = 0;
  run_as_threads(3, [&](World world) {
    torch::nn::Sequential net = test::make_seeded(
        1, [] { return torch::nn::Sequential(torch::nn::Linear(7, 5), torch::nn::Linear(5, 11)); });
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    ZeroOptimizer<AdamW> optimizer(parallel, adamw());
    DistributedDataParallel<torch::nn::Sequential> ddp(net, parallel.mpu().data_group());
    const auto step = [&] {
      optimizer.zero_grad();
      ddp.forward(torch::ones({3, 7})).sum().backward();
      optimizer.step();
    };
    step();  // at first ranks compare what they share
    Ledger& ledger = parallel.mpu().data_group()->ledger();
    ledger.clear();
    step();
    EXPECT_EQ(ledger.total("reduce_scatter").calls, 1);
    EXPECT_EQ(ledger.total("all_gather").calls, 1);
    EXPECT_EQ(ledger.total().calls, 2);
    bytes += ledger.total().bytes;
    if (world.rank() == 0) {
      for (const Tensor& each : net->parameters()) whole += each.nbytes();
    }
  });
  EXPECT_EQ(bytes, 3 * whole * 2 * 2 / 3);
}

TEST(Zero, OnlyWhatIsTrainedIsReduced) {
  run_as_threads(2, [](World world) {
    torch::nn::Sequential net = test::make_seeded(1, [] {
      return torch::nn::Sequential(torch::nn::Linear(40, 60), torch::nn::Linear(60, 2),
                                   torch::nn::Linear(2, 40));
    });
    for (Tensor each : net[0]->parameters()) each.set_requires_grad(false);
    ParallelModel parallel = initialize(net, zero_config("", 2), in(world));
    ZeroOptimizer<AdamW> optimizer(parallel, adamw());
    DistributedDataParallel<torch::nn::Sequential> ddp(net, parallel.mpu().data_group());
    Ledger& ledger = parallel.mpu().data_group()->ledger();
    ddp.forward(torch::ones({3, 40})).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
    ledger.clear();
    ddp.forward(torch::ones({3, 40})).sum().backward();
    const int64_t adapters = 60 * 2 + 2 + 2 * 40 + 40;
    EXPECT_EQ(ledger.total().bytes, 4 * adapters / 2);
    int64_t held = 0;
    for (const Tensor& each : net->parameters()) {
      if (each.grad().defined()) held += each.grad().nbytes();
    }
    EXPECT_EQ(held, 4 * adapters / 2);
    EXPECT_EQ(optimizer.state().size(), 4u);
  });
}

TEST(Zero, AParameterWithoutAGradientIsNamedOrFound) {
  run_as_threads(2, [](World world) {
    const auto train = [&](const DDPOptions& options) {
      Net net = make_net();
      ParallelModel parallel = initialize(net, zero_config("", 2), in(world));
      ZeroOptimizer<AdamW> optimizer(parallel, trained(net), adamw());
      DistributedDataParallel<Net> ddp(net, parallel.mpu().data_group(), options);
      const Tensors rows = batch(0, world.rank(), 2);
      const Tensor y = ddp.forward(rows[0]);
      // One rank's loss leaves the norm's bias out, the other's does not: nobody's gradient is
      // lost.
      const auto loss = [&] {
        if (world.rank() == 0) return (net->norm->weight.sum() * 3 + y.sum() * 0);
        return net->norm->weight.sum();
      };
      loss().backward();
      EXPECT_EQ(full_tensor(net->norm->weight.grad())[0].item<double>(), 2);
      EXPECT_EQ(net->head->weight.grad().defined(),
                world.rank() == 0 || options.find_unused_parameters());
      ddp.forward(rows[0]);
    };
    train(DDPOptions().find_unused_parameters(true));
    if (world.rank() == 0) return train(DDPOptions());
    EXPECT_THAT(error_of([&] { train(DDPOptions()); }),
                HasSubstr("gave no gradient to scale, convolution.weight"));
  });
}

}  // namespace
}  // namespace oslo::zero_test
