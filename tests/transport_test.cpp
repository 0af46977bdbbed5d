// What carries a group's collectives: the choice, and the two levels between hosts.
#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "mpu/group/messages.h"
#include "mpu/transport/counted_process_group.h"
#include "tests/models/gpt2.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using testing::Each;
using testing::HasSubstr;

/// Before the first group asks: these tests are about the choice that nobody made.
[[maybe_unused]] const int kNobodyChose = ::unsetenv("OSLO_BACKEND");

/// Ranks as threads that believe to be on the hosts `host_of`; what `body` threw, by rank.
std::vector<std::string> run_on_hosts(const std::vector<std::string>& host_of,
                                      const std::function<void(World)>& body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  const int size = static_cast<int>(host_of.size());
  std::vector<std::string> errors(size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        body(World::over_store(store, rank, size, std::chrono::minutes(1), host_of[rank]));
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

std::vector<int> all_of(const World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string backend_of(const Group& group) {
  return group.process_group()->getDefaultBackend()->getBackendName();
}

std::string chosen(const std::vector<std::string>& hosts, Transport wanted) {
  std::string name;
  const auto errors = run_on_hosts(hosts, [&](World world) {
    const auto group = world.make_group("all", all_of(world), wanted);
    if (world.rank() == 0) name = backend_of(*group);
  });
  return errors[0].empty() ? name : errors[0];
}

TEST(Transport, FollowsTheHosts) {
  EXPECT_EQ(chosen({"a", "a", "a"}, Transport::automatic), "shm");
  EXPECT_EQ(chosen({"a", "b", "c"}, Transport::automatic), "gloo");
  EXPECT_EQ(chosen({"a", "b", "a"}, Transport::automatic), "hierarchical");
  EXPECT_EQ(chosen({"", ""}, Transport::automatic), "shm");  // this machine
}

TEST(Transport, CanBeAskedFor) {
  EXPECT_EQ(chosen({"a", "a"}, Transport::gloo), "gloo");
  EXPECT_EQ(chosen({"a", "b", "a"}, Transport::gloo), "gloo");
  EXPECT_EQ(chosen({"a", "a"}, Transport::shared_memory), "shm");
  EXPECT_EQ(chosen({"a", "a"}, Transport::fake), "fake");
}

TEST(Transport, SharedMemoryBetweenHostsIsRefusedOnEveryRank) {
  const auto errors = run_on_hosts({"a", "b", "b"}, [](World world) {
    world.make_group("all", all_of(world), Transport::shared_memory);
  });
  EXPECT_THAT(errors, Each(HasSubstr("its 3 ranks are on 2 hosts")));
}

TEST(Transport, RanksThatWantDifferentOnesAreTold) {
  const auto errors = run_on_hosts({"a", "a"}, [](World world) {
    world.make_group("all", all_of(world),
                     world.rank() == 0 ? Transport::gloo : Transport::shared_memory);
  });
  EXPECT_THAT(errors, Each(HasSubstr("start all ranks with the same OSLO_BACKEND and config")));
}

TEST(Transport, NcclNeedsACudaBuildAndADevice) {
  if (at::hasCUDA()) GTEST_SKIP() << "there is a device";
  EXPECT_THAT(chosen({"a", "a"}, Transport::nccl), HasSubstr("-DOSLO_CUDA=ON"));
  EXPECT_THAT(chosen({"a", "b"}, Transport::nccl), HasSubstr("ranks 0 1 have no CUDA device"));
}

TEST(Transport, IsAnEntryOfTheConfig) {
  const auto config = Config::parse(R"({"model_parallelism": {"tensor_parallel_size": 2}})");
  EXPECT_EQ(config.resolve(2).backend, Transport::automatic);
  Config with = config;
  with.set("backend=gloo");
  EXPECT_EQ(with.resolve(2).backend, Transport::gloo);
  try {
    Config::parse(R"({"backend": "tcp"})");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("auto, gloo, shm, nccl, fake"));
  }
  EXPECT_THROW(parse_transport("tcp"), Error);
  for (const auto& [transport, name] : kTransportNames) {
    EXPECT_EQ(parse_transport(to_string(transport)), transport);
  }
}

TEST(Transport, HowLongRanksWaitIsAnEntryOfTheConfig) {
  const auto errors = run_on_hosts({"a", "a"}, [](World world) {
    auto model = parity::make_seeded(3, [] { return torch::nn::Linear(4, 6); });
    InitializeOptions how;
    how.world = world;
    const auto parallel = initialize(
        model,
        Config::parse(R"({"timeout": 77, "model_parallelism": {"tensor_parallel_size": 2}})"), how);
    EXPECT_EQ(world.timeout(), std::chrono::seconds(77));
    const auto group = parallel.mpu().get_tensor_parallel_group();
    EXPECT_EQ(dynamic_cast<const CountedProcessGroup&>(*group).timeout(), std::chrono::seconds(77));
  });
  EXPECT_THAT(errors, Each(""));
}

/// Two hosts of several ranks, one with a single one, ranks not in the order of hosts.
const std::vector<std::string> kHosts{"a", "b", "a", "c", "b", "a"};

TEST(TwoLevels, CollectivesOfGroups) {
  const auto errors = run_on_hosts(kHosts, [](World world) {
    const auto group = world.make_group("all", all_of(world), Transport::automatic);
    const int rank = world.rank(), size = world.size();
    const auto own = torch::arange(7, torch::kDouble) + rank;
    const auto sum = 6.0 * torch::arange(7, torch::kDouble) + 15;
    EXPECT_TRUE(torch::equal(group->all_reduce(own.clone()), sum));
    EXPECT_TRUE(torch::equal(group->all_reduce(own.clone(), Reduction::max),
                             torch::arange(7, torch::kDouble) + 5));
    EXPECT_TRUE(torch::equal(group->all_reduce(own.clone(), Reduction::average), sum / 6));
    const std::vector<int64_t> sizes{2, 0, 1, 3, 1, 2};  // uneven, and along an inner dimension
    const auto part = torch::full({3, sizes[rank]}, double(rank));
    const auto whole = group->all_gather(part, 1, sizes);
    EXPECT_EQ(whole.sizes(), (std::vector<int64_t>{3, 9}));
    EXPECT_TRUE(torch::equal(whole[2], torch::tensor({0., 0., 2., 3., 3., 3., 4., 5., 5.})));
    const auto kept = group->reduce_scatter(whole, 1, sizes);
    EXPECT_TRUE(torch::equal(kept, torch::full({3, sizes[rank]}, 6.0 * rank)));
    for (int root = 0; root < size; ++root) {
      auto sent = torch::full({5}, double(rank));
      group->broadcast(sent, root);
      EXPECT_TRUE(torch::equal(sent, torch::full({5}, double(root))));
    }
    EXPECT_EQ(group->exchange(rank * rank), (std::vector<int64_t>{0, 1, 4, 9, 16, 25}));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(TwoLevels, MessagesInsideAHostAndBetweenHosts) {
  const auto errors = run_on_hosts(kHosts, [](World world) {
    const auto group = world.make_group("all", all_of(world), Transport::automatic);
    const int rank = world.rank(), size = world.size();
    const auto sent = [](int from, int to) {
      return torch::arange(20'000, torch::kDouble) * (from + 1) + to;
    };
    // All send to all before anybody receives.
    for (int to = 0; to < size; ++to) {
      if (to != rank) group->send({sent(rank, to), torch::full({2}, to)}, to, 3);
    }
    for (int from = size - 1; from >= 0; --from) {
      if (from == rank) continue;
      const auto came = group->receive(from, 3);
      EXPECT_TRUE(torch::equal(came[0], sent(from, rank)));
      EXPECT_TRUE(torch::equal(came[1], torch::full({2}, rank)));
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(TwoLevels, TheLedgerSaysWhatMoved) {
  const auto errors = run_on_hosts({"a", "b", "a"}, [](World world) {
    const auto group = world.make_group("all", all_of(world), Transport::automatic);
    const auto moved_by = [&](const std::function<void()>& operation) {
      group->ledger().clear();
      operation();
      return group->ledger().moved();
    };
    const std::vector<int64_t> sizes{2, 0, 3};
    const auto whole = torch::ones({5, 20}, torch::kDouble);  // 800 bytes
    // Of two ranks of a host each reads the other's; two hosts exchange as much; a rank that is not
    // its host's first gets the result from it.
    const int64_t expected = world.rank() == 1 ? 800 : 2 * 800;
    EXPECT_EQ(moved_by([&] { group->all_reduce(whole.clone()); }), expected);
    EXPECT_EQ(moved_by([&] { group->reduce_scatter(whole, 0, sizes); }), expected);
    const auto part = torch::ones({sizes[world.rank()], 20}, torch::kDouble);
    EXPECT_EQ(moved_by([&] { group->all_gather(part, 0, sizes); }), 2 * 3 * 160);  // padded
    EXPECT_EQ(group->ledger().total().bytes, 160 * (5 - sizes[world.rank()]));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(TwoLevels, StartedCollectivesOfParts) {
  const auto errors = run_on_hosts(kHosts, [](World world) {
    const auto group = world.make_group("all", all_of(world), Transport::automatic);
    const std::vector<int64_t> sizes{2, 0, 1, 3, 1, 2};
    const auto whole = torch::arange(27, torch::kDouble).view({3, 9});
    const auto start = std::accumulate(sizes.begin(), sizes.begin() + world.rank(), int64_t{0});
    const auto part = whole.narrow(1, start, sizes[world.rank()]);
    Pending gathered = group->start_all_gather(part, 1, sizes);
    Pending scattered = group->start_reduce_scatter(whole, 1, sizes);
    Pending sent = group->start_broadcast(torch::full({3}, world.rank()), 4);
    EXPECT_TRUE(torch::equal(sent.wait(), torch::full({3}, 4)));
    EXPECT_TRUE(torch::equal(scattered.wait(), part * 6));
    EXPECT_TRUE(torch::equal(gathered.wait(), whole));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(TwoLevels, WorkThatNobodyWaitsForYet) {
  const auto errors = run_on_hosts(kHosts, [](World world) {
    const auto group = world.make_group("all", all_of(world), Transport::automatic);
    std::vector<torch::Tensor> values;
    std::vector<c10::intrusive_ptr<c10d::Work>> started;
    for (int i = 0; i < 5; ++i) {
      values.push_back(torch::full({1000}, double(world.rank() + i)));
      std::vector<torch::Tensor> one{values.back()};
      started.push_back(group->process_group()->allreduce(one));
    }
    for (int i = 4; i >= 0; --i) started[i]->wait();
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(values[i].sum().item<double>(), 1000.0 * (15 + 6 * i));
    }
    EXPECT_TRUE(started[0]->isSuccess());
    EXPECT_EQ(started[0]->getFuture()->value().toTensorVector()[0].data_ptr(),
              values[0].data_ptr());
    group->process_group()->barrier()->wait();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(TwoLevels, ADtypeThatGlooDoesNotTakeIsRefusedOnEveryRank) {
  const auto errors = run_on_hosts({"a", "b", "a"}, [](World world) {
    const auto group = world.make_group("all", all_of(world), Transport::automatic);
    const auto own = torch::full({1}, world.rank() + 3);
    EXPECT_EQ(group->all_reduce(own, Reduction::average).item<int64_t>(), 4);
    group->all_reduce(torch::ones({3}, torch::kShort));
  });
  EXPECT_THAT(errors, Each(HasSubstr("do not take Short tensors")));
}

TEST(TwoLevels, ARankThatThrowsEndsTheOthersToo) {
  const auto errors = run_on_hosts(kHosts, [](World world) {
    const auto group = world.make_group("all", all_of(world), Transport::automatic);
    group->all_reduce(torch::ones({3}));
    OSLO_CHECK(world.rank() != 2, "enough");
    group->all_reduce(torch::ones({3}));
  });
  EXPECT_EQ(errors[2], "enough");
  for (const int rank : {0, 1, 3, 4, 5}) EXPECT_THAT(errors[rank], HasSubstr("all_reduce")) << rank;
}

TEST(TwoLevels, AModelInParallelOverThem) {
  const auto make = [] {
    return parity::make_seeded(3, [] { return models::GPT2(models::GPT2Options()); });
  };
  const auto tokens = torch::arange(14).view({2, 7});
  models::GPT2 reference = make();
  const auto expected = reference->forward(tokens);
  expected.sum().backward();
  const auto errors = run_on_hosts({"a", "b", "a"}, [&](World world) {
    models::GPT2 model = make();
    InitializeOptions how;
    how.world = world;
    const auto parallel = initialize(model, Config::parse(parity::tensor_parallel(3)), how);
    const auto y = model->forward(tokens);
    y.sum().backward();
    // fp32, sums in another order.
    parity::expect_close(full_tensor(y), expected, "output", {1e-4, 1e-5});
    parity::expect_gradients(*model, *reference, {1e-3, 1e-4});
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(FlightRecorder, NothingIsWrittenIntoIt) {
  const auto errors = run_on_hosts({"a", "b"}, [](World world) {
    world.make_group("all", {0, 1}, Transport::gloo)->all_reduce(torch::ones({3}));
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(c10d::dump_fr_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false),
              testing::Not(HasSubstr("all_reduce")));
}

/// Many groups between hosts meet LibTorch for the first time at once, on threads of their own.
TEST(FlightRecorder, GroupsOnSeveralThreadsDoNotMeetThere) {
  const auto errors = run_on_hosts({"a", "b", "a", "b"}, [](World world) {
    std::vector<std::shared_ptr<Group>> groups;
    for (int i = 0; i < 12; ++i) {
      groups.push_back(
          world.make_group("group" + std::to_string(i), all_of(world), Transport::automatic));
    }
    std::vector<c10::intrusive_ptr<c10d::Work>> started;
    std::vector<torch::Tensor> values;
    for (const auto& group : groups) {
      values.push_back(torch::ones({3}));
      std::vector<torch::Tensor> one{values.back()};
      started.push_back(group->process_group()->allreduce(one));
    }
    for (const auto& work : started) work->wait();
    for (const auto& value : values) EXPECT_EQ(value.sum().item<double>(), 12);
  });
  EXPECT_THAT(errors, Each(""));
}

std::atomic<int> pipes_that_broke{0};

/// What writing to a pipe without a reader says, after a group over Gloo has been made.
int write_to_a_broken_pipe() {
  run_on_hosts({"a", "b"},
               [](World world) { world.make_group("all", all_of(world), Transport::gloo); });
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  const ssize_t written = ::write(ends[1], "x", 1);
  const int reason = errno;
  ::close(ends[1]);
  EXPECT_EQ(written, -1);
  return reason;
}

TEST(BrokenPipes, AreErrorsNotTheEnd) {
  ::signal(SIGPIPE, SIG_DFL);
  EXPECT_EQ(write_to_a_broken_pipe(), EPIPE);
}

TEST(BrokenPipes, AProgramsOwnWayStays) {
  ::signal(SIGPIPE, [](int) { ++pipes_that_broke; });
  EXPECT_EQ(write_to_a_broken_pipe(), EPIPE);
  EXPECT_EQ(pipes_that_broke, 1);
  ::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace oslo
