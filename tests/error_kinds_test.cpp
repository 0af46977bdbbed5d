// Each kind of error, as programs catch it, in each way that it is thrown: alone, on every rank of
// a world, through autograd, on another thread, between pipeline stages.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

#include "mpu/group/group.h"
#include "mpu/group/group_agreement.h"
#include "mpu/world/agreement.h"
#include "oslo_cpp/oslo.h"
#include "tests/support/temporary_directory.h"

namespace oslo {
namespace {

using namespace std::chrono_literals;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : up(register_module("up", torch::nn::Linear(4, 8))),
        down(register_module("down", torch::nn::Linear(8, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return down(torch::relu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Net);

const char* const kTensor2 = R"({"model_parallelism": {"tensor_parallel_size": 2}})";
const char* const kPipeline2 = R"({"model_parallelism": {"pipeline_parallel_size": 2},
                                   "stages": {"up": 0, "down": 1}})";

/// The same on every rank, whatever generator the threads share.
Net make_net() {
  const at::NoGradGuard no_grad;
  Net net;
  for (at::Tensor& parameter : net->parameters()) parameter.fill_(0.1);
  return net;
}

/// What `body` throws is a `Kind`, and none of the other kinds.
template <typename Kind>
void expect_throws(const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(kind_of(error), kind_of(Kind(""))) << error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "no Error: " << error.what();
  }
}

/// The same on each of two ranks.
template <typename Kind>
void expect_throws_on_every_rank(const std::function<void(const World&)>& body) {
  run_as_threads(2, [&](const World& world) { expect_throws<Kind>([&] { body(world); }); });
}

// --- the config ---

TEST(ConfigErrors, AreOfKeysValuesAndSizes) {
  expect_throws<ConfigError>([] { Config::parse(R"({"tensor_paralel_size": 2})"); });
  expect_throws<ConfigError>([] { Config::parse("{"); });
  expect_throws<ConfigError>([] { Config::parse(kTensor2).resolve(3); });
  expect_throws<ConfigError>([] { Config().set("train.amp.enabled=True"); });
  expect_throws<ConfigError>([] { MPU(World::alone(), MpuOptions().axes({{"row", 2}})); });
}

TEST(ConfigErrors, AreOfPatternsOnEveryRank) {
  const Config config = Config::parse(
      R"({"model_parallelism": {"tensor_parallel_size": 2}, "plan": {"upp": "column"}})");
  expect_throws_on_every_rank<ConfigError>([&](const World& world) {
    InitializeOptions how;
    how.world = world;
    initialize(make_net(), config, how);
  });
}

TEST(ConfigErrors, AreOfTheEnvironment) {
  setenv("OSLO_TIMEOUT", "10m", /*overwrite=*/1);
  expect_throws<ConfigError>([] { World::from_environment(); });
  unsetenv("OSLO_TIMEOUT");
}

// --- files ---

TEST(FileErrors, AreOfWhatIsNotThereOrDamaged) {
  const test::TemporaryDirectory folder;
  const std::string missing = (folder / "missing").string(), damaged = folder / "x.safetensors";
  std::ofstream(damaged) << "no tensors";
  Net net = make_net();
  expect_throws<FileError>([&] { Config::from_file(missing); });
  expect_throws<FileError>([&] { load_state(*net, missing); });
  expect_throws<FileError>([&] { load_state(*net, damaged); });
  expect_throws<FileError>([&] { load_exported(missing); });
}

TEST(FileErrors, AreThrownOnEveryRank) {
  const test::TemporaryDirectory folder;
  std::ofstream(folder / "notes.txt") << "somebody's";
  expect_throws_on_every_rank<FileError>([&](const World& world) {
    InitializeOptions how;
    how.world = world;
    ParallelModel parallel = initialize(make_net(), Config::parse(kTensor2), how);
    expect_throws<FileError>([&] { parallel.save_parallelized(folder.path().string()); });
    parallel.from_parallelized((folder / "missing").string());
  });
  // The check itself may end on one rank only.
  expect_throws_on_every_rank<FileError>([](const World& world) {
    agree_on_success(world, "reading", [&] {
      if (world.rank() == 1) throw FileError("a disk is full");
    });
  });
  expect_throws_on_every_rank<FileError>([](const World& world) {
    const auto group = world.make_group("readers", {0, 1});
    agree_on_success(*group, [&] {
      if (world.rank() == 1) throw FileError("a disk is full");
    });
  });
}

// --- other ranks ---

void lose_rank_1(const World& world) {
  if (world.rank() == 1) throw FileError("rank 1 lost its disk");
}

/// Runs `body`, in which rank 1 is lost, on two ranks: the cause is thrown, not what came of it.
void with_a_lost_rank(const std::function<void(const World&)>& body) {
  EXPECT_THROW(run_as_threads(2, body), FileError);
}

TEST(PeerErrors, AreOfARankThatHasEnded) {
  for (const Transport transport : {Transport::shared_memory, Transport::gloo}) {
    with_a_lost_rank([&](const World& world) {
      const auto group = world.make_group("pair", {0, 1}, transport);
      lose_rank_1(world);
      expect_throws<PeerError>([&] { group->all_reduce(at::ones({3})); });
    });
  }
  with_a_lost_rank([](const World& world) {
    lose_rank_1(world);
    expect_throws<PeerError>([&] { world.barrier(); });
  });
}

TEST(PeerErrors, AreOfARankThatIsLate) {
  run_as_threads(2, [](const World& world) {
    world.barrier();
    world.set_timeout(50ms);
    if (world.rank() != 0) return;
    expect_throws<PeerError>([&] { world.exchange("the weather", "fine"); });
  });
}

TEST(PeerErrors, PassThroughAutograd) {
  with_a_lost_rank([](const World& world) {
    InitializeOptions how;
    how.world = world;
    Net net = make_net();
    const ParallelModel parallel = initialize(net, Config::parse(kTensor2), how);
    const at::Tensor x = at::ones({2, 4}).requires_grad_();
    const at::Tensor loss = net(x).sum();
    lose_rank_1(world);
    expect_throws<PeerError>([&] { loss.backward(); });
  });
}

TEST(PeerErrors, PassThroughDistributedDataParallel) {
  with_a_lost_rank([](const World& world) {
    const MPU mpu(world);
    DistributedDataParallel ddp(make_net(), mpu.data_group());
    const at::Tensor loss = ddp.forward(at::ones({2, 4})).sum();
    lose_rank_1(world);
    expect_throws<PeerError>([&] { loss.backward(); });
  });
}

// What the first stage sees is that the last one has gone; all say what was first.
TEST(PeerErrors, OfAPipelineAreOfTheKindOfTheFirstFailure) {
  expect_throws_on_every_rank<FileError>([](const World& world) {
    InitializeOptions how;
    how.world = world;
    Net net = make_net();
    PipelineSchedule schedule(initialize(net, Config::parse(kPipeline2), how),
                              PipelineOptions().num_microbatches(2));
    schedule.forward_backward_step({at::ones({4, 4})}, [&](const std::vector<at::Tensor>& batch) {
      const at::Tensor y = net(batch[0]);
      lose_rank_1(world);
      return y.sum();
    });
  });
}

// --- the rest ---

TEST(OtherErrors, HaveNoKind) {
  expect_throws<Error>([] { World::alone().make_group("pair", {1, 2}); });
  // An operation that this rank alone got wrong.
  expect_throws<Error>([] { SaveOptions().format("pickle"); });
}

}  // namespace
}  // namespace oslo
