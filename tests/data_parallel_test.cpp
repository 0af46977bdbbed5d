// DistributedDataParallel on ordinary modules; data_parallel_tensor_test.cpp has those cut over
// tensor ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "mpu/mpu.h"
#include "parallelizers/data/distributed_data_parallel.h"

namespace {

using oslo::DDPOptions;
using oslo::DistributedDataParallel;
using oslo::MPU;
using oslo::World;
using testing::HasSubstr;
using torch::Tensor;

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return out->forward(torch::tanh(in->forward(x))); }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(6, 10))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(10, 3))};
};
TORCH_MODULE(Net);

/// Ranks are threads and share the default generator.
template <typename M, typename... Args>
M seeded(uint64_t seed, Args... args) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  torch::manual_seed(seed);
  M module(args...);
  module->to(torch::kDouble);
  return module;
}

Tensor random(torch::IntArrayRef sizes, uint64_t seed) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), torch::kDouble);
}

void expect_close(const Tensor& a, const Tensor& b, const std::string& what) {
  EXPECT_TRUE(torch::allclose(a, b, 1e-9, 1e-10)) << what << "\n" << a << "\n" << b;
}

void expect_same_gradients(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto other = b.named_parameters();
  for (const auto& p : a.named_parameters()) {
    ASSERT_TRUE(p.value().grad().defined()) << p.key();
    expect_close(p.value().grad(), other[p.key()].grad(), "gradient of " + p.key());
  }
}

template <typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const oslo::Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no oslo::Error";
  return "";
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

struct NormedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return norm->forward(x); }
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(3))};
};
TORCH_MODULE(Normed);

TEST(DataParallelBuffers, FollowRankZero) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Normed net = seeded<Normed>(0);
    net->norm->running_mean.fill_(world.rank());
    DistributedDataParallel<Normed> ddp(net, mpu.data_group());
    expect_close(net->norm->running_mean, torch::zeros({3}, torch::kDouble), "at construction");

    Normed first = seeded<Normed>(0);
    const auto x = [](int rank) { return random({4, 3}, rank); };
    for (int step = 0; step < 2; ++step) {
      first->forward(x(0));
      ddp.forward(x(world.rank())).sum().backward();
    }
    const auto before = ddp.ledger().total("broadcast").calls;
    {
      const torch::NoGradGuard evaluation;
      net->eval();
      for (int i = 0; i < 2; ++i) ddp.forward(x(0));
    }
    EXPECT_EQ(ddp.ledger().total("broadcast").calls - before, 1);
    expect_close(net->norm->running_mean, first->norm->running_mean, "running mean");
    expect_close(net->norm->running_var, first->norm->running_var, "running variance");
    EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 2);
  });
}

TEST(DataParallelBuffers, StayWhenToldSo) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Normed net = seeded<Normed>(0);
    DistributedDataParallel<Normed> ddp(net, mpu.data_group(),
                                        DDPOptions().broadcast_buffers(false));
    ddp.ledger().clear();
    for (int step = 0; step < 3; ++step) {
      ddp.forward(random({4, 3}, world.rank())).sum().backward();
    }
    EXPECT_EQ(ddp.ledger().total("broadcast").calls, 0);
  });
}

// What a broadcast in bytes has to carry.
struct OddTensorsImpl : torch::nn::Module {
  explicit OddTensorsImpl(int rank) {
    weight = register_parameter("weight", torch::full({3, 2}, rank, torch::kDouble).t());
    register_buffer("mask", torch::full({5}, rank == 0, torch::kBool));
    register_buffer("half", torch::full({2, 2}, rank + 0.5, torch::kHalf).t());
    register_buffer("empty", torch::zeros({0, 4}));
    register_buffer("count", torch::tensor(rank + 7, torch::kLong));
  }
  Tensor weight;
};
TORCH_MODULE(OddTensors);

TEST(DataParallelBuffers, AnyTypeAndLayoutIsSent) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    OddTensors here(world.rank()), first(0);
    DistributedDataParallel<OddTensors> ddp(here, mpu.data_group());
    EXPECT_TRUE(here->weight.equal(first->weight));
    for (const auto& buffer : here->named_buffers()) {
      EXPECT_TRUE(buffer.value().equal(first->named_buffers()[buffer.key()])) << buffer.key();
    }
    EXPECT_EQ(ddp.ledger().total("broadcast").calls, 1);
  });
}

TEST(DataParallelFront, LooksIntoWhatForwardReturns) {
  using Nested = std::pair<std::vector<Tensor>,
                           std::tuple<std::optional<Tensor>, std::map<std::string, Tensor>, int>>;
  static_assert(oslo::OutputTensors<Nested>::known);
  static_assert(!oslo::OutputTensors<int>::known);
  const Tensor t = torch::zeros({1});
  std::vector<Tensor> found;
  oslo::collect_tensors(Nested{{t, Tensor(), t}, {t, {{"a", t}}, 3}}, found);
  EXPECT_EQ(found.size(), 4u);
}

TEST(DataParallelAlone, DoesNothing) {
  const MPU mpu(World::alone());
  Net net = seeded<Net>(0);
  DistributedDataParallel<Net> ddp(net, mpu.get_data_parallel_group());
  const Tensor x = random({4, 6}, 1);
  EXPECT_TRUE(ddp.forward(x).equal(net->forward(x)));
  for (const Tensor& parameter : net->parameters()) {
    EXPECT_EQ(torch::autograd::impl::try_get_grad_accumulator(parameter), nullptr);
  }
  EXPECT_TRUE(ddp.bucket_sizes().empty());
  const auto quiet = ddp.no_sync();
  ddp.forward(x).sum().backward();
  EXPECT_TRUE(ddp.ledger().entries().empty());
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

TEST(DataParallelFront, TakesHoldersPointersAndClasses) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Net net = seeded<Net>(0);
    const Tensor x = random({1, 6}, 1);
    DistributedDataParallel<NetImpl> by_class(net.ptr(), mpu.get_data_parallel_group());
    DistributedDataParallel<std::shared_ptr<NetImpl>> by_pointer(net.ptr(), mpu.data_group());
    DistributedDataParallel deduced(net, mpu.get_data_parallel_group(), DDPOptions());
    EXPECT_TRUE(by_class.forward(x).equal(by_pointer.forward(x)));
    EXPECT_TRUE(deduced.forward(x).equal(net->forward(x)));
    EXPECT_EQ(deduced->in.get(), net->in.get());
    EXPECT_EQ(deduced.module().get(), net.get());
  });
}

TEST(DataParallelErrors, DifferentModelsFailEverywhere) {
  oslo::run_as_threads(3, [](World world) {
    const MPU mpu(world);
    Net net;
    if (world.rank() == 2) net->out = net->replace_module("out", torch::nn::Linear(10, 5));
    const std::string error =
        error_of([&] { DistributedDataParallel<Net> ddp(net, mpu.data_group()); });
    EXPECT_EQ(error,
              "the model of data rank 2 is not that of data rank 0: there parameter "
              "out.weight [5, 10] Float, on rank 0 parameter out.weight [3, 10] Float; all "
              "ranks of the group must build the model alike");
  });
}

TEST(DataParallelErrors, ChangesAfterwardsAreNoticed) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Net net;
    DistributedDataParallel<Net> ddp(net, mpu.data_group());
    const auto error = [&] { return error_of([&] { ddp.forward(torch::ones({1, 6})); }); };
    net->in->bias.set_requires_grad(false);
    EXPECT_THAT(error(), HasSubstr("parameter in.bias was frozen after"));
    net->in->bias.set_requires_grad(true);
    net->to(torch::kDouble);
    EXPECT_THAT(error(), HasSubstr("parameter in.weight became Double"));
  });
}

TEST(DataParallelErrors, NothingToTrainAndSparseGradientsAreRefused) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Net frozen;
    for (Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    EXPECT_THAT(error_of([&] { DistributedDataParallel<Net>(frozen, mpu.data_group()); }),
                HasSubstr("no parameter of the model requires a gradient"));
    torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(3, 2).sparse(true));
    EXPECT_THAT(
        error_of([&] { DistributedDataParallel<torch::nn::Embedding>(sparse, mpu.data_group()); }),
        HasSubstr("sparse(true)"));
  });
}

TEST(DataParallelErrors, ALostRankEndsBackward) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Net net = seeded<Net>(0);
    DistributedDataParallel<Net> ddp(net, mpu.data_group());
    const Tensor loss = ddp.forward(random({1, 6}, 1)).sum();
    if (world.rank() == 1) return;
    EXPECT_THAT(error_of([&] { loss.backward(); }),
                HasSubstr("all_reduce of gradients over group data (ranks 0 1) failed"));
  });
}

}  // namespace
