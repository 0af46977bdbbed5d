// Stage 3 with one copy of the weights a host: what holds of it beside what `sharded.cpp` runs both
// ways.
#include <future>
#include <optional>

#include "tests/support/address_space.h"
#include "tests/support/temporary_directory.h"
#include "tests/zero_test/sharded_net.h"

namespace oslo::zero_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Of whatever is thrown.
template <typename Run>
std::string what_of(const Run& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

torch::optim::SGD sgd(const Mlp& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// Over the data ranks.
int64_t calls_of_two_steps(World world, const std::string& keys, const std::string& more = "") {
  Mlp net = make_mlp();
  ParallelModel parallel = initialize(net, zero_config(more, 3, 0, keys), in(world));
  const auto group = parallel.mpu().data_group();
  torch::optim::SGD optimizer = sgd(net);
  DistributedDataParallel<Mlp> ddp(net, group);
  EXPECT_LT(net->bias.numel(), 7);
  group->ledger().clear();
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    ddp.forward(rows_of(step, world.rank())).square().sum().backward();
    EXPECT_EQ(buckets_of(net->parameters()).at(0)->gathered_bytes(), 0);
    optimizer.step();
  }
  return group->ledger().total().calls;
}

TEST(OneCopy, NothingIsGathered) {
  run_as_threads(3, [](World world) {
    for (const std::string& asked : {std::string(), kOneCopy}) {
      EXPECT_EQ(calls_of_two_steps(world, asked), 0);
    }
  });
}

/// LibTorch keeps an empty place for it.
TEST(OneCopy, AHookThatWasTakenOffAsksForNothing) {
  run_as_threads(2, [](World world) {
    Mlp net = make_mlp();
    ParallelModel parallel = initialize(net, sharded_config(kOneCopy), in(world));
    const auto group = parallel.mpu().data_group();
    const Tensor weight = net->blocks[1]->as<torch::nn::Linear>()->weight;
    const auto handle = weight.register_hook([](const Tensor& gradient) { return gradient * 2; });
    const auto calls_of_a_pass = [&] {
      group->ledger().clear();
      net->forward(rows_of(0, world.rank())).square().sum().backward();
      return group->ledger().total().calls;
    };
    EXPECT_GT(calls_of_a_pass(), 0);
    weight.remove_hook(handle);
    EXPECT_EQ(calls_of_a_pass(), 0);
  });
}

TEST(OneCopy, RanksTakeDifferentPaths) {  // acceptance Z6
  constexpr int kRanks = 3;
  // Which layers a rank calls, by a seed of its own; rank 1 ends its forward early.
  const auto layers_of = [](int step, int rank) {
    std::vector<int> order;
    for (int layer = 0; layer < 3; ++layer) {
      if ((step * 5 + rank * 3 + layer * layer) % 4 != 0) order.push_back(layer);
    }
    if (rank == 1 && !order.empty()) order.resize(1);
    return order;
  };
  run_as_threads(kRanks, [&](World world) {
    at::set_num_threads(1);
    Mlp net = make_mlp(), plain = make_mlp();
    ParallelModel parallel = initialize(net, sharded_config(kOneCopy), in(world));
    torch::optim::SGD optimizer = sgd(net), reference = sgd(plain);
    DistributedDataParallel<Mlp> ddp(net, parallel.mpu().data_group());
    for (int step = 0; step < 8; ++step) {
      // On one device: what every rank computes, and zeros for what one does not.
      Tensors sums(plain->parameters().size());
      for (int rank = 0; rank < kRanks; ++rank) {
        reference.zero_grad();
        plain->order = layers_of(step, rank);
        plain->forward(rows_of(step, rank)).square().mean().backward();
        const Tensors all = plain->parameters();
        for (size_t i = 0; i < all.size(); ++i) {
          if (!all[i].grad().defined()) continue;
          const Tensor share = all[i].grad() / kRanks;
          sums[i] = sums[i].defined() ? sums[i] + share : share;
        }
      }
      for (size_t i = 0; i < sums.size(); ++i) plain->parameters()[i].mutable_grad() = sums[i];
      optimizer.zero_grad();
      net->order = layers_of(step, world.rank());
      ddp.forward(rows_of(step, world.rank())).square().mean().backward();
      expect_same(net, plain, /*bits=*/true, c10::str("before step ", step));
      optimizer.step();
      reference.step();
      expect_same(net, plain, /*bits=*/true, c10::str("after step ", step));
    }
  });
}

TEST(OneCopy, OneRankComputesAlone) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    Mlp net = make_mlp(), plain = make_mlp();
    ParallelModel parallel = initialize(net, sharded_config(kOneCopy), in(world));
    const auto group = parallel.mpu().data_group();
    torch::optim::SGD optimizer = sgd(net), reference = sgd(plain);
    DistributedDataParallel<Mlp> ddp(net, group), plain_ddp(plain, group);
    const auto evaluate = [&](int rank) {
      if (world.rank() != rank) return;
      for (const bool recorded : {true, false}) {
        const torch::AutoGradMode mode(recorded);
        EXPECT_TRUE(torch::equal(net->forward(rows_of(9, 9)), plain->forward(rows_of(9, 9))));
      }
    };
    for (int step = 0; step < 4; ++step) {
      reference.zero_grad();
      optimizer.zero_grad();
      plain_ddp.forward(rows_of(step, world.rank())).square().mean().backward();
      ddp.forward(rows_of(step, world.rank())).square().mean().backward();
      evaluate(step % 2);  // the other one is at its step already
      optimizer.step();
      reference.step();
      evaluate(step % 2);
      world.barrier();
    }
  });
}

/// Each in turn comes last to an evaluation that a write follows, with nothing between that ranks
/// wait in.
TEST(OneCopy, AWriteWaitsForWhoIsYetToRead) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    Mlp net = make_mlp(), plain = make_mlp();
    ParallelModel parallel = initialize(net, sharded_config(), in(world));
    const torch::NoGradGuard no_grad;
    for (int step = 0; step < 20; ++step) {
      Tensor late = torch::eye(300);
      for (int i = 0; i < 20 && world.rank() == step % 2; ++i) late = late.mm(late);
      EXPECT_TRUE(torch::equal(net->forward(rows_of(step, 0)), plain->forward(rows_of(step, 0))));
      net->bias.mul_(0.5);
      plain->bias.mul_(0.5);
    }
  });
}

TEST(OneCopy, AGraphThatIsKeptOverAStepIsRefused) {
  run_as_threads(2, [](World world) {
    Mlp net = make_mlp();
    ParallelModel parallel = initialize(net, sharded_config(kOneCopy), in(world));
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.1));
    const Tensor x = rows_of(0, world.rank()).requires_grad_();
    const Tensor loss = net->forward(x).square().sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward({}, /*retain_graph=*/true);
    optimizer.step();
    EXPECT_THAT(what_of([&] { loss.backward(); }), HasSubstr("modified by an inplace operation"));
  });
}

TEST(OneCopy, ATensorRankMayHaveNothingOfAWeight) {
  run_as_threads(4, [](World world) {
    at::set_num_threads(1);
    const auto make = [] {
      return test::make_seeded(3, [] {
        const auto options = torch::nn::LinearOptions(7, 1).bias(false);
        return torch::nn::Sequential(torch::nn::Linear(options));
      });
    };
    torch::nn::Sequential net = make(), plain = make();
    const std::string column = kTensor + R"(, "plan": {"0": "column"})";
    ParallelModel parallel = initialize(net, zero_config(column, 3), in(world));
    net->forward(rows_of(0, 0)).square().sum().backward();
    plain->forward(rows_of(0, 0)).square().sum().backward();
    EXPECT_TRUE(
        torch::allclose(full_tensor(net->parameters()[0].grad()), plain->parameters()[0].grad()));
  });
}

/// Of three rows one tensor rank has two and the other one, which is no reason to cut them over
/// data ranks in another way.
TEST(OneCopy, TensorRanksCutAlikeWhateverTheyHave) {
  const test::TemporaryDirectory folder;
  run_as_threads(4, [&](World world) {
    at::set_num_threads(1);
    const auto make = [] {
      return test::make_seeded(3, [] {
        return torch::nn::Sequential(torch::nn::Linear(7, 3), torch::nn::Linear(3, 7));
      });
    };
    torch::nn::Sequential net = make(), plain = make();
    ParallelModel parallel = initialize(net, zero_config(kTensor, 3), in(world));
    const std::string saved = (folder / "saved").string();
    parallel.save_parallelized(saved);
    const torch::NoGradGuard no_grad;
    for (const Tensor& each : net->parameters()) each.zero_();
    parallel.from_parallelized(saved);
    EXPECT_TRUE(torch::allclose(net->forward(rows_of(0, 0)), plain->forward(rows_of(0, 0))));
  });
}

TEST(OneCopy, ARankThatLeavesIsNamed) {
  const std::string error = error_of([] {
    run_as_threads(2, [&](World world) {
      Mlp net = make_mlp();
      ParallelModel parallel = initialize(net, sharded_config(kOneCopy), in(world));
      torch::optim::SGD optimizer = sgd(net);
      net->forward(rows_of(0, world.rank())).sum().backward();
      if (world.rank() == 1) return;
      optimizer.step();
    });
  });
  EXPECT_THAT(error, AllOf(HasSubstr("rank 0 waited for rank 1 to come to the write"),
                           HasSubstr("has left")));
}

/// Rank 1 throws, and takes rank 0 along, for which rank 2 waits when both have gone.
TEST(OneCopy, TheRankThatFailedFirstIsNamedBesideTheOneThatIsWaitedFor) {
  std::promise<void> second_has_gone;
  std::string error;
  const std::string thrown = error_of([&] {
    run_as_threads(3, [&](World world) {
      struct Leaving {
        std::promise<void>* of;
        ~Leaving() {
          if (of != nullptr) of->set_value();
        }
      };
      const Leaving leaving{world.rank() == 0 ? &second_has_gone : nullptr};
      Mlp net = make_mlp();
      ParallelModel parallel = initialize(net, sharded_config(kOneCopy), in(world));
      torch::optim::SGD optimizer = sgd(net);
      net->forward(rows_of(0, world.rank())).sum().backward();
      if (world.rank() == 1) throw std::runtime_error("no more data");
      if (world.rank() == 0) parallel.mpu().data_group()->all_reduce(torch::ones({3}));
      second_has_gone.get_future().wait();
      try {
        optimizer.step();
      } catch (const PeerError& told) {
        error = told.what();
        throw;
      }
    });
  });
  EXPECT_THAT(thrown, HasSubstr("rank 1: no more data"));
  EXPECT_THAT(error, AllOf(HasSubstr("rank 2 waited for rank 0 to "), HasSubstr("has left"),
                           HasSubstr("; rank 1 has thrown an exception")));
}

TEST(OneCopy, APassThatThrowsOnOneRankIsTold) {
  run_as_threads(2, [](World world) {
    Mlp net = make_mlp();
    ParallelModel parallel = initialize(net, sharded_config(kOneCopy), in(world));
    const auto train = [&](bool throws) {
      Tensor x = rows_of(0, world.rank()).requires_grad_() * 1;
      if (throws) {
        x.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("stop"); });
      }
      net->forward(x).square().mean().backward();
    };
    const std::string error = what_of([&] { train(world.rank() == 1); });
    EXPECT_THAT(error, HasSubstr(world.rank() == 1 ? "stop" : "the backward pass of rank 1 threw"));
    for (Tensor& each : net->parameters()) each.mutable_grad().reset();
    train(false);
    EXPECT_TRUE(net->bias.grad().defined());
  });
}

TEST(OneCopy, ARankThatIsLateIsNamed) {
  std::promise<void> told;
  run_as_threads(
      2,
      [&](World world) {
        Mlp net = make_mlp();
        ParallelModel parallel = initialize(net, sharded_config(kOneCopy), in(world));
        if (world.rank() == 1) return told.get_future().wait();
        EXPECT_THAT(what_of([&] { net->forward(rows_of(0, 0)).sum().backward(); }),
                    HasSubstr("rank 0 waited for rank 1 to end its backward pass"));
        told.set_value();
      },
      std::chrono::seconds(3));
}

TEST(OneCopy, CheckpointsComeOfIt) {
  const test::TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    Net net = make_net(), plain = make_net();
    ParallelModel parallel = initialize(net, sharded_config(kOneCopy), in(world));
    AdamW optimizer(trained(net), adamw()), reference(trained(plain), adamw());
    train(plain, reference, 0, 3);
    train(net, optimizer, 0, 3);
    parallel.save_parallelized((folder / "saved").string(), SaveOptions().optimizer(&optimizer));
    train(net, optimizer, 5, 7);  // to be replaced
    parallel.from_parallelized((folder / "saved").string(), LoadOptions().optimizer(&optimizer));
    train(plain, reference, 3, 5);
    train(net, optimizer, 3, 5);
    expect_near(net, plain);
  });
}

TEST(OneCopy, ThePlanSaysSo) {
  run_as_threads(4, [](World world) {
    const auto expect = [&](const std::string& keys, int shards, const std::string& text) {
      Mlp net = make_mlp();
      const Plan plan = initialize(net, zero_config("", 3, shards, keys), in(world)).plan();
      EXPECT_EQ(plan.entries.size(), 7U);
      for (const PlanEntry& each : plan.entries) EXPECT_THAT(each.why, HasSubstr(text));
    };
    expect("", 0, "; 4 data ranks share one copy on their host");
    expect(kOneCopy, 2, "; 2 data ranks share one copy on their host");
    expect(kGathered, 0, "; 4 data ranks gather their parts");
  });
}

TEST(OneCopy, IsNotTakenWhereItCannotBe) {
  run_as_threads(2, [](World world) {
    EXPECT_GT(calls_of_two_steps(world, "", R"(, "backend": "gloo")"), 0);
  });
}

TEST(OneCopy, WhatItCannotBeIsRefused) {
  for (const std::string more : {"", R"(, "model_parallelism": {"pipeline_parallel_size": 2})"}) {
    const std::string error = error_of([&] {
      run_as_threads(4, [&](World world) {
        Mlp net = make_mlp();
        initialize(net, zero_config(R"(, "backend": "gloo")" + more, 3, 0, kOneCopy), in(world));
      });
    });
    EXPECT_THAT(error, AllOf(HasSubstr("copies_per_host' = 1: data ranks"),
                             HasSubstr("shared memory"), HasSubstr("to 0")));
  }
}

/// The model fits, and parts of it: what ranks would map of it and their gradients does not.
TEST(OneCopy, WhereMemoryCannotBeHadWeightsAreGathered) {
  OSLO_LIMITS_ADDRESS_SPACE();
  constexpr int64_t kTables = 8, kElements = 7 << 19, kBytes = kTables * kElements * 4;
  const auto all_at_once = [](World world, const std::function<void()>& then) {
    world.barrier();
    if (world.rank() == 0) then();
    world.barrier();
  };
  for (const std::string& asked : {std::string(), kOneCopy}) {
    testing::internal::CaptureStderr();
    run_as_threads(2, [&](World world) {
      torch::nn::Sequential net;
      for (int i = 0; i < kTables; ++i) {
        net->push_back(torch::nn::Embedding(torch::nn::EmbeddingOptions(kElements / 4, 4)
                                                ._weight(torch::ones({kElements / 4, 4}))));
      }
      all_at_once(world, [] { test::limit_address_space(test::address_space() + 2 * kBytes); });
      std::optional<ParallelModel> parallel;
      const std::string error =
          what_of([&] { parallel.emplace(initialize(net, sharded_config(asked), in(world))); });
      all_at_once(world, [] { test::limit_address_space(RLIM_INFINITY); });
      if (asked.empty()) {
        EXPECT_EQ(error, "");
        EXPECT_EQ(net->parameters()[0].numel(), kElements / 2);
        const torch::NoGradGuard no_grad;
        net[0]->as<torch::nn::Embedding>()->forward(torch::arange(5));
        EXPECT_EQ(buckets_of(net->parameters()).at(0)->gathered_bytes(), kElements * 4);
      } else {
        EXPECT_THAT(error, AllOf(HasSubstr("copies_per_host' = 1: "), HasSubstr("cannot be mapped"),
                                 HasSubstr("set it to 0")));
        EXPECT_EQ(net->parameters()[0].numel(), kElements);
      }
    });
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_EQ(told.find("data ranks gather their weights") != std::string::npos, asked.empty());
  }
}

TEST(OneCopy, MemoryAndWritesThatAreNotSeenAreRefused) {
  run_as_threads(2, [](World world) {
    Mlp net = make_mlp(), other = make_mlp();
    ParallelModel parallel = initialize(net, sharded_config(kOneCopy), in(world)),
                  second = initialize(other, sharded_config(kOneCopy), in(world));
    {
      const torch::NoGradGuard no_grad;
      local_tensor(net->bias).mul_(2);
    }
    EXPECT_THAT(error_of([&] { net->forward(rows_of(0, 0)); }),
                HasSubstr("written where that is not seen"));
    other->to(torch::kDouble);
    EXPECT_THAT(error_of([&] { other->forward(rows_of(0, 0).to(torch::kDouble)); }),
                HasSubstr("was given other memory"));
  });
}

}  // namespace
}  // namespace oslo::zero_test
