// DistributedDataParallel on ordinary modules: gradients, buckets, parameters that stay unused.
// tensor_axis.cpp has the modules that are cut over tensor ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/data_parallel_test/net.h"
#include "tests/support/error_of.h"

namespace data_parallel_test {
namespace {

using oslo::test::error_of;
using testing::HasSubstr;

void expect_same_gradients(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto other = b.named_parameters();
  for (const auto& p : a.named_parameters()) {
    ASSERT_TRUE(p.value().grad().defined()) << p.key();
    expect_close(p.value().grad(), other[p.key()].grad(), "gradient of " + p.key());
  }
}

/// LibTorch gives a parameter another accumulator then, which the reducer has no hooks at.
TEST(DataParallelAccumulators, GoesOnBehindOtherTypesAndArchives) {
  for (const bool archive : {false, true}) {
    const Tensor x = random({8, 6}, 1), y = random({8, 3}, 2);
    oslo::run_as_threads(2, [&](World world) {
      const MPU mpu(world);
      const int r = world.rank();
      Net one = seeded<Net>(0), net = seeded<Net>(0);
      DistributedDataParallel<Net> ddp(net, mpu.data_group());
      for (int step = 0; step < 2; ++step) {
        one->zero_grad();
        net->zero_grad();
        torch::mse_loss(one->forward(x), y).backward();
        torch::mse_loss(ddp.forward(x.chunk(2)[r]), y.chunk(2)[r]).backward();
        expect_same_gradients(*net, *one);
        if (archive) {
          std::stringstream file;
          torch::save(net->out, file);
          torch::load(net->out, file);
        } else {
          net->to(torch::kFloat);
          net->to(torch::kDouble);
          one->to(torch::kFloat);
          one->to(torch::kDouble);
        }
      }
    });
  }
}

struct Variant {
  const char* name;
  DDPOptions options;
  bool set_to_none = true;
};

class DataParallel : public testing::TestWithParam<Variant> {};

// D1, with every option, and D2.
TEST_P(DataParallel, TrainsAsOneBigBatch) {
  const int ranks = 2;
  const Tensor x = random({8, 6}, 1), y = random({8, 3}, 2);
  oslo::run_as_threads(ranks, [&](World world) {
    const MPU mpu(world);
    const int r = world.rank();
    Net one = seeded<Net>(0), net = seeded<Net>(r);
    DistributedDataParallel<Net> ddp(net, mpu.data_group(), GetParam().options);
    torch::optim::Adam one_optimizer(one->parameters(), 0.01), optimizer(net->parameters(), 0.01);
    for (int step = 0; step < 10; ++step) {
      one_optimizer.zero_grad();
      torch::mse_loss(one->forward(x), y).backward();
      optimizer.zero_grad(GetParam().set_to_none);
      torch::mse_loss(ddp.forward(x.chunk(ranks)[r]), y.chunk(ranks)[r]).backward();
      expect_same_gradients(*one, *net);
      one_optimizer.step();
      optimizer.step();
    }
    for (const auto& p : one->named_parameters()) {
      expect_close(p.value(), net->named_parameters()[p.key()], p.key());
    }
  });
}

TEST_P(DataParallel, NoSyncAddsUpAndExchangesOnce) {
  const int ranks = 2, parts = 3;
  const Tensor x = random({12, 6}, 1), y = random({12, 3}, 2);
  oslo::run_as_threads(ranks, [&](World world) {
    const MPU mpu(world);
    const int r = world.rank();
    Net one = seeded<Net>(0), net = seeded<Net>(0);
    DistributedDataParallel<Net> ddp(net, mpu.data_group(), GetParam().options);
    const auto xs = x.chunk(ranks)[r].chunk(parts), ys = y.chunk(ranks)[r].chunk(parts);
    const auto backward = [&](int i) {
      (torch::mse_loss(ddp.forward(xs[i]), ys[i]) / parts).backward();
    };
    for (int step = 0; step < 3; ++step) {
      one->zero_grad();
      torch::mse_loss(one->forward(x), y).backward();
      net->zero_grad(GetParam().set_to_none);
      const auto before = ddp.ledger().total("all_reduce");
      {
        const auto quiet = ddp.no_sync();
        for (int i = 0; i + 1 < parts; ++i) backward(i);
      }
      if (!GetParam().options.static_graph()) {
        EXPECT_EQ(ddp.ledger().total("all_reduce"), before);
      }
      backward(parts - 1);
      expect_same_gradients(*one, *net);
      if (GetParam().options.static_graph() && step == 0) continue;
      const bool map = GetParam().options.find_unused_parameters();
      EXPECT_EQ((ddp.ledger().total("all_reduce") - before).calls,
                static_cast<int64_t>(ddp.bucket_sizes().size()) + map);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Options, DataParallel,
    testing::Values(Variant{"Defaults", {}}, Variant{"KeptGradients", {}, false},
                    Variant{"SmallBuckets", DDPOptions().bucket_cap_mb(1e-4)},
                    Variant{"Views", DDPOptions().gradient_as_bucket_view(true)},
                    Variant{"KeptViews", DDPOptions().gradient_as_bucket_view(true), false},
                    Variant{"FindUnused", DDPOptions().find_unused_parameters(true)},
                    Variant{"Static", DDPOptions().static_graph(true)},
                    Variant{"StaticSmallBuckets",
                            DDPOptions().static_graph(true).bucket_cap_mb(1e-4)},
                    Variant{"StaticViews",
                            DDPOptions().static_graph(true).gradient_as_bucket_view(true), false}),
    [](const auto& info) { return info.param.name; });

TEST(DataParallelLedger, CountsEveryBucketExactly) {
  oslo::run_as_threads(3, [](World world) {
    const MPU mpu(world);
    Net net = seeded<Net>(0);
    DistributedDataParallel<Net> ddp(net, mpu.get_data_parallel_group());
    ddp.ledger().clear();
    ddp.forward(random({2, 6}, world.rank())).sum().backward();
    const int64_t elements = 2 * 2 * (6 * 10 + 10 + 10 * 3 + 3) / 3;
    const oslo::Traffic expected{1, elements, elements * 8};
    EXPECT_EQ(ddp.ledger().total(), expected);
    EXPECT_EQ(mpu.data_group()->ledger().entries()[0].rule, "ddp");
  });
}

// D4.
struct TenLinearsImpl : torch::nn::Module {
  TenLinearsImpl() {
    for (int i = 0; i < 10; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(95, 95).bias(false)));
    }
    register_module("layers", layers);
  }
  Tensor forward(const Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(TenLinears);

TEST(DataParallelBuckets, AreAsLargeAsAllowed) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    TenLinears net;
    const auto sizes = [&](double cap) {
      return DistributedDataParallel<TenLinears>(net, mpu.data_group(),
                                                 DDPOptions().bucket_cap_mb(cap))
          .bucket_sizes();
    };
    EXPECT_EQ(sizes(25), std::vector<int64_t>{10 * 95 * 95 * 4});
    EXPECT_EQ(sizes(36000.0 / 1024 / 1024), std::vector<int64_t>(10, 95 * 95 * 4));
    DistributedDataParallel<TenLinears> ddp(net, mpu.data_group(),
                                            DDPOptions().bucket_cap_mb(36000.0 / 1024 / 1024));
    for (int step = 0; step < 3; ++step) ddp.forward(torch::ones({1, 95})).sum().backward();
    EXPECT_EQ(ddp.bucket_sizes().size(), 10u) << "rebuilt after the first step";
  });
}

// Each rank takes its own branch; nobody takes `never`.
struct BranchesImpl : torch::nn::Module {
  std::tuple<Tensor, int> forward(const Tensor& x, int branch) {
    return {(branch == 0 ? a : b)->forward(x), branch};
  }
  torch::nn::Linear a{register_module("a", torch::nn::Linear(2, 2))};
  torch::nn::Linear b{register_module("b", torch::nn::Linear(2, 2))};
  torch::nn::Linear never{register_module("never", torch::nn::Linear(2, 2))};
};
TORCH_MODULE(Branches);

TEST(DataParallelUnused, ParametersOfOtherRanksGetTheirGradient) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Branches net = seeded<Branches>(0);
    DistributedDataParallel<Branches> ddp(net, mpu.data_group(),
                                          DDPOptions().find_unused_parameters(true));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const Tensor x = torch::full({1, 2}, world.rank() + 1.0, torch::kDouble);
      std::get<0>(ddp.forward(x, world.rank())).sum().backward();
      expect_close(net->a->weight.grad(), torch::full({2, 2}, 0.5, torch::kDouble), "a");
      expect_close(net->b->weight.grad(), torch::full({2, 2}, 1.0, torch::kDouble), "b");
      EXPECT_FALSE(net->never->weight.grad().defined());
    }
  });
}

TEST(DataParallelUnused, MayBeOthersInEachStep) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Branches net = seeded<Branches>(0);
    DistributedDataParallel<Branches> ddp(net, mpu.data_group(),
                                          DDPOptions().find_unused_parameters(true));
    for (int step = 0; step < 5; ++step) {
      net->zero_grad();
      const int branch = step % 3 == 1;
      const Tensor x = torch::full({1, 2}, world.rank() + 1.0, torch::kDouble);
      std::get<0>(ddp.forward(x, branch)).sum().backward();
      const Tensor used = (branch == 0 ? net->a : net->b)->weight.grad();
      const Tensor unused = (branch == 0 ? net->b : net->a)->weight.grad();
      expect_close(used, torch::full({2, 2}, 1.5, torch::kDouble), "used");
      EXPECT_TRUE(!unused.defined() || unused.abs().max().item<double>() == 0);
    }
  });
}

TEST(DataParallelUnused, AreNamedWhenNotExpected) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Branches net = seeded<Branches>(0);
    DistributedDataParallel<Branches> ddp(net, mpu.data_group());
    const Tensor x = torch::ones({1, 2}, torch::kDouble);
    std::get<0>(ddp.forward(x, 0)).sum().backward();
    const std::string error = error_of([&] { ddp.forward(x, 0); });
    EXPECT_THAT(error,
                HasSubstr("no gradient to b.weight, b.bias, never.weight, never.bias (4 of 6"));
    EXPECT_THAT(error, HasSubstr("find_unused_parameters(true)"));
  });
}

// `lm_head->weight = wte->weight` leaves the head's first weight registered, without a gradient.
struct TiedImpl : torch::nn::Module {
  TiedImpl() { head->weight = embedding->weight; }
  Tensor forward(const Tensor& tokens) { return head->forward(embedding->forward(tokens)); }
  torch::nn::Embedding embedding{register_module("embedding", torch::nn::Embedding(7, 4))};
  torch::nn::Linear head{
      register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 7).bias(false)))};
};
TORCH_MODULE(Tied);

TEST(DataParallelTies, CountOnceAndNeedNoSearch) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Tied net;
    DistributedDataParallel<Tied> ddp(net, mpu.data_group());
    EXPECT_EQ(ddp.bucket_sizes(), std::vector<int64_t>{7 * 4 * 4});
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      ddp.forward(torch::full({1}, world.rank(), torch::kLong)).sum().backward();
      const Tensor sum = mpu.data_group()->all_reduce(net->embedding->weight.grad().clone());
      EXPECT_TRUE(torch::allclose(sum / 2, net->embedding->weight.grad()));
    }
  });
}

}  // namespace
}  // namespace data_parallel_test
