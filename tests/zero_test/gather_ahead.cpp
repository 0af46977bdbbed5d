// Stage 3 over Gloo, where the bucket that is expected next travels while this one is computed
// with.
#include "parallelizers/data/sharded/gather_ahead.h"

#include "tests/zero_test/sharded_net.h"

namespace oslo::zero_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Config over_gloo() {
  return zero_config(R"(, "backend": "gloo")", 3);
}

/// Steps of two ranks beside the same with plain DistributedDataParallel.
class AheadPair {
 public:
  explicit AheadPair(World world)
      : rank_(world.rank()), net(make_mlp()), plain_(make_mlp()), parallel_(start(net, world)) {}

  /// `forward(ddp, net, x)`: the same for both. Returns how many gathers of the forward had been
  /// started behind each block, and in all.
  template <typename Forward>
  std::vector<int64_t> step(const Forward& forward) {
    Ledger& ledger = parallel_.mpu().data_group()->ledger();
    std::vector<int64_t> calls;
    const auto gathers = [&] { return ledger.total("all_gather").calls; };
    reference_.zero_grad();
    optimizer_.zero_grad();
    const Tensor x = rows_of(steps_, rank_);
    forward(plain_ddp_, plain_, x).square().mean().backward();
    ledger.clear();
    watch_ = [&](int /*block*/) { calls.push_back(gathers()); };
    const Tensor out = forward(ddp_, net, x);
    calls.push_back(gathers());
    ledger.clear();
    out.square().mean().backward();
    backward_gathers = gathers();
    for (const auto& buckets : buckets_of(net->parameters())) {
      EXPECT_EQ(buckets->gathered_bytes(), 0);
    }
    reference_.step();
    optimizer_.step();
    expect_same(net, plain_, true, c10::str("after step ", steps_++));
    return calls;
  }
  std::vector<int64_t> step() {
    return step([](auto& ddp, Mlp&, const Tensor& x) { return ddp.forward(x); });
  }
  std::vector<int64_t> step(const std::vector<int>& order) {
    net->order = plain_->order = order;
    return step();
  }

  int64_t backward_gathers = 0;

 private:
  ParallelModel start(Mlp& net, World world) {
    net->behind = [this](int block) { watch_(block); };
    return initialize(net, over_gloo(), in(world));
  }
  static torch::optim::SGDOptions options() { return torch::optim::SGDOptions(0.1).momentum(0.9); }

  int rank_, steps_ = 0;
  std::function<void(int)> watch_ = [](int) {};

 public:
  Mlp net;

 private:
  Mlp plain_;
  ParallelModel parallel_;
  DDPOptions unused_ = DDPOptions().find_unused_parameters(true);
  DistributedDataParallel<Mlp> plain_ddp_{plain_, parallel_.mpu().data_group(), unused_},
      ddp_{net, parallel_.mpu().data_group(), unused_};
  torch::optim::SGD reference_{plain_->parameters(), options()},
      optimizer_{net->parameters(), options()};
};

void on_two_ranks(const std::function<void(AheadPair&)>& body) {
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    AheadPair pair(world);
    body(pair);
  });
}

TEST(GatherAhead, GathersAsOftenAndOneEarlier) {  // acceptance K11
  on_two_ranks([](AheadPair& pair) {
    EXPECT_THAT(pair.step(), ElementsAre(1, 2, 3, 4));
    EXPECT_EQ(pair.backward_gathers, 2);
    for (int step = 1; step < 4; ++step) {
      EXPECT_THAT(pair.step(), ElementsAre(2, 3, 4, 4));
      EXPECT_EQ(pair.backward_gathers, 2);
    }
  });
}

TEST(GatherAhead, AnotherOrderCostsOneGather) {
  on_two_ranks([](AheadPair& pair) {
    pair.step();
    EXPECT_THAT(pair.step({0, 2, 1}), ElementsAre(2, 3, 4, 5));
    EXPECT_THAT(pair.step({0, 2, 1}), ElementsAre(2, 3, 4, 4));
    EXPECT_THAT(pair.step({0, 2}), ElementsAre(2, 3, 4));
    EXPECT_THAT(pair.step({0, 2}), ElementsAre(2, 3, 3));
    EXPECT_THAT(pair.step({1, 1, 0}), ElementsAre(1, 1, 2, 3));
    EXPECT_THAT(pair.step({1, 1, 0}), ElementsAre(2, 2, 3, 3));
  });
}

/// On its way to where it is used next: the parameter itself, or what counts its writes apart.
TEST(GatherAhead, WhatIsWrittenMeanwhileIsGatheredAgain) {
  on_two_ranks([](AheadPair& pair) {
    for (const bool by_data : {false, true}) {
      pair.step();
      const auto forward = [&](auto& ddp, Mlp& net, const Tensor& x) {
        const auto behind = net->behind;
        const Tensor& weight = net->blocks[1]->template as<torch::nn::Linear>()->weight;
        const Tensor data = by_data ? weight.data() : weight;
        net->behind = [&](int block) {
          if (behind) behind(block);
          const torch::NoGradGuard no_grad;
          if (block == 0) data.mul_(0.5);
        };
        const Tensor out = ddp.forward(x);
        net->behind = behind;
        return out;
      };
      EXPECT_THAT(pair.step(forward), ElementsAre(2, 4, 5, 5)) << by_data;
    }
  });
}

TEST(GatherAhead, EvaluationBetween) {
  on_two_ranks([](AheadPair& pair) {
    for (int step = 0; step < 3; ++step) {
      pair.step([&](auto& ddp, Mlp& net, const Tensor& x) {
        {
          const torch::NoGradGuard no_grad;
          net->order = {2, 0};
          ddp.forward(x);
          net->order = {0, 1, 2};
          net->forward(x);
        }
        return ddp.forward(x);
      });
    }
  });
}

/// The first block stays whole; the forward behind it gathers what comes then.
TEST(GatherAhead, AForwardThatThrows) {
  on_two_ranks([](AheadPair& pair) {
    pair.step();
    pair.step([](auto& ddp, Mlp& net, const Tensor& x) {
      const auto behind = net->behind;
      net->behind = [](int) { throw std::runtime_error("stop"); };
      EXPECT_THROW(ddp.forward(x), std::runtime_error);
      net->behind = behind;
      return ddp.forward(x);
    });
    EXPECT_THAT(pair.step(), ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(pair.step(), ElementsAre(2, 3, 4, 4));
  });
}

/// What is under way has all parts; the next gather waits for the rank that has thrown.
TEST(GatherAhead, ARankThatThrowsIsNamed) {
  std::string error;
  const auto body = [&](World world) {
    Mlp net = make_mlp();
    ParallelModel parallel = initialize(net, over_gloo(), in(world));
    DistributedDataParallel<Mlp> ddp(net, parallel.mpu().data_group());
    const torch::NoGradGuard no_grad;
    ddp.forward(rows_of(0, world.rank()));
    net->behind = [&](int) { throw Error("stop"); };
    if (world.rank() == 0) {
      net->behind = nullptr;
      error = error_of([&] { ddp.forward(rows_of(0, 0)); });
    } else {
      ddp.forward(rows_of(0, 1));
    }
  };
  EXPECT_THROW(run_as_threads(2, body), Error);
  EXPECT_THAT(error, AllOf(HasSubstr("all_gather"), HasSubstr("rank 1 has thrown")));
}

}  // namespace
}  // namespace oslo::zero_test
