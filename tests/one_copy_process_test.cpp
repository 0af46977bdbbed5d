// Weights of which processes of one host share one copy (ZeRO 3, "copies_per_host": 1): bytes that
// are resident, of all ranks together, and a rank that is killed while weights are being written.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <oslo_cpp/oslo.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <tuple>
#include <vector>

#include "mpu/launch/malloc_settings.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

using torch::Tensor;

std::string one_copy(int stages) {
  return c10::str(
      R"({"model_parallelism": {"pipeline_parallel_size": )", stages,
      R"(}, "zero_optimization": {"enabled": true, "stage": 3, "copies_per_host": 1}})");
}

struct StackImpl : torch::nn::Module {
  StackImpl(int layers, int64_t width) {
    for (int i = 0; i < layers; ++i) {
      blocks->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    }
    register_module("blocks", blocks);
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *blocks) x = block->as<torch::nn::Linear>()->forward(x);
    return x;
  }
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Stack);

/// Of this process: what it shares with n others counts 1/n.
int64_t proportional_bytes() {
  ::malloc_trim(0);
  std::ifstream rollup("/proc/self/smaps_rollup");
  int64_t bytes = 0;
  for (std::string line; std::getline(rollup, line);) {
    // Pages of files, which are code, come and go as the system likes.
    for (const std::string kind : {"Pss_Anon:", "Pss_Shmem:"}) {
      if (line.starts_with(kind)) bytes += std::stoll(line.substr(kind.size())) * 1024;
    }
  }
  return bytes;
}

/// `run` in a process for each rank; how each ended (waitpid).
std::vector<int> in_processes(int ranks, const std::function<void(const World&)>& run) {
  const TemporaryDirectory folder;
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    at::set_num_threads(1);
    int failed = 0;
    try {
      const auto store =
          c10::make_intrusive<c10d::FileStore>((folder.path() / "store").string(), ranks);
      run(World::over_store(store, rank, ranks, std::chrono::seconds(60)));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      failed = 1;
    }
    ::_exit(failed);
  }
  std::vector<int> ended;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    ended.push_back(status);
  }
  return ended;
}

ParallelModel initialized(const Stack& net, const World& world, int stages = 1) {
  InitializeOptions how;
  how.world = world;
  return initialize(net.ptr(), Config::parse(one_copy(stages)), how);
}

/// All ranks' numbers, added up; the same on all.
int64_t sum_over(const World& world, int64_t own) {
  int64_t sum = 0;
  for (const std::string& each : world.exchange("bytes", std::to_string(own))) {
    sum += std::stoll(each);
  }
  return sum;
}

struct Processes {
  int ranks;
  bool keeps = false;  ///< malloc is told to keep what is freed, as by `oslo run`
  int stages = 1;      ///< of a pipeline
};
class OneCopyProcesses : public ::testing::TestWithParam<Processes> {};
INSTANTIATE_TEST_SUITE_P(Ranks, OneCopyProcesses,
                         ::testing::Values(Processes{2}, Processes{4}, Processes{2, true},
                                           Processes{4, false, 2}, Processes{4, true, 2}));

TEST_P(OneCopyProcesses, WeightsAreResidentOnce) {
  const auto [ranks, keeps, stages] = GetParam();
  const auto ended = in_processes(ranks, [keeps = keeps, stages = stages](const World& world) {
    keeps ? ::setenv(MallocSettings::kTrimVariable, "4294967296", 1)
          : ::unsetenv(MallocSettings::kTrimVariable);
    constexpr int kLayers = 8;
    constexpr int64_t kWidth = 1024, kWeights = kLayers * kWidth * kWidth * 4;  // 32 MiB
    constexpr double kRate = 30;                                                // losses are small
    // What libraries, the engine and kernels take is there before.
    {
      const Tensor warm = torch::ones({2, kWidth}, torch::requires_grad());
      torch::mm(warm, torch::ones({kWidth, kWidth})).sum().backward();
    }
    const int64_t before = sum_over(world, proportional_bytes());
    torch::manual_seed(1);
    Stack net(kLayers, kWidth);
    ParallelModel parallel = initialized(net, world, stages);
    const int replica = parallel.mpu().rank("data"), replicas = parallel.mpu().size("data");
    DistributedDataParallel<Stack> ddp(net, parallel.mpu().data_group());
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(kRate));
    const auto expect_resident = [&](int64_t times, const char* when) {
      world.barrier();
      const int64_t bytes = sum_over(world, proportional_bytes()) - before;
      world.barrier();
      if (world.rank() == 0)
        std::printf("%d ranks, %s: %.1f MiB of %.1f MiB of weights\n", world.size(), when,
                    bytes / 1048576.0, kWeights / 1048576.0);
      // Beside weights there is what each rank's program takes first here, a schedule more of it;
      // and what was there before may have gone.
      const int64_t more = stages > 1 ? kWeights * 3 / 4 : kWeights / 2, less = kWeights / 4;
      OSLO_CHECK(bytes >= kWeights * times - less && bytes < kWeights * times + more, when, ": ",
                 bytes, " bytes are resident, of weights of ", kWeights, " on ", world.size(),
                 " ranks");
    };
    expect_resident(1, "after initialize");
    const auto x = [](int rank) { return torch::ones({2, kWidth}) * (1 + rank); };
    const auto pass = [&, stages = stages] {
      if (stages == 1) return ddp.forward(x(replica)).square().mean().backward();
      schedule.forward_backward_step({x(replica)}, [&](const std::vector<Tensor>& micro) {
        return net->forward(micro[0]).square().mean();
      });
    };
    for (int step = 0; step < 3; ++step) {
      pass();
      optimizer.step();
      optimizer.zero_grad();
    }
    // What each rank has left, where that is kept.
    const int64_t kept = keeps ? replicas : 0;
    expect_resident(1 + kept, "after steps");
    pass();
    optimizer.step();
    expect_resident(2 + kept, "with gradients");  // each rank its part
    torch::manual_seed(1);
    Stack plain(kLayers, kWidth);
    const Tensor first = plain->parameters()[0].detach().clone();
    torch::optim::SGD reference(plain->parameters(), torch::optim::SGDOptions(kRate));
    for (int step = 0; step < 4; ++step) {
      reference.zero_grad();
      for (int rank = 0; rank < replicas; ++rank) {
        (plain->forward(x(rank)).square().mean() / replicas).backward();
      }
      reference.step();
    }
    OSLO_CHECK(!torch::allclose(first, plain->parameters()[0]), "nothing was learnt");
    for (const auto& each : plain->named_parameters()) {
      OSLO_CHECK(torch::allclose(full_tensor(net->named_parameters()[each.key()]), each.value()),
                 each.key(), " is not what one device trains");
    }
  });
  for (const int status : ended) EXPECT_EQ(status, 0);
}

TEST(OneCopyKilled, AtAWriteItIsNamed) {
  const TemporaryDirectory folder;
  const std::string saved = (folder.path() / "saved").string();
  const auto train = [](Stack& net, torch::optim::Optimizer& optimizer, int rank) {
    optimizer.zero_grad();
    net->forward(torch::ones({2, 7}) * (1 + rank)).square().mean().backward();
    optimizer.step();
  };
  const auto start = [](const World& world, const auto& run) {
    torch::manual_seed(1);
    Stack net(3, 7);
    ParallelModel parallel = initialized(net, world);
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.1));
    run(net, parallel, optimizer);
  };
  const auto ended = in_processes(3, [&](const World& world) {
    start(world, [&](Stack& net, ParallelModel& parallel, torch::optim::AdamW& optimizer) {
      train(net, optimizer, world.rank());
      parallel.save_parallelized(saved, SaveOptions().optimizer(&optimizer));
      optimizer.zero_grad();
      net->forward(torch::ones({2, 7})).square().mean().backward();
      if (world.rank() == 1) {
        // Some of the weights are written, some are not.
        const torch::NoGradGuard no_grad;
        net->blocks[0]->as<torch::nn::Linear>()->weight.mul_(0.5);
        ::kill(::getpid(), SIGKILL);
      }
      std::string error;
      try {
        const torch::NoGradGuard no_grad;
        for (Tensor& each : net->parameters()) each.mul_(0.5);
        const torch::AutoGradMode record(true);
        net->forward(torch::ones({2, 7}));
      } catch (const PeerError& told) {
        error = told.what();
      }
      OSLO_CHECK(error.find("waited for rank 1") != std::string::npos &&
                     error.find("has ended") != std::string::npos,
                 "another error: ", error);
    });
  });
  ASSERT_EQ(ended.size(), 3u);
  EXPECT_EQ(ended[0], 0);
  EXPECT_EQ(ended[1], SIGKILL);
  EXPECT_EQ(ended[2], 0);
  // What was saved is all there, and training goes on from it.
  for (const int status : in_processes(2, [&](const World& world) {
         start(world, [&](Stack& net, ParallelModel& parallel, torch::optim::AdamW& optimizer) {
           parallel.from_parallelized(saved, LoadOptions().optimizer(&optimizer));
           train(net, optimizer, world.rank());
         });
       })) {
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
}  // namespace oslo::test
