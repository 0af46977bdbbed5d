// A rank of a pipeline is killed while a schedule runs: the others end soon, each with an error
// that says where it was and which rank has ended, and nothing is left in shared memory.
// OSLO_TEST_KILLS says how many.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <regex>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "tests/support/shared_memory_names.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

using torch::Tensor;

constexpr int kRanks = 3, kMicroBatches = 6;
constexpr auto kTimeLimit = std::chrono::seconds(60);

/// When the victim dies: after so many operators of its forwards, and a little later.
struct Moment {
  int victim;
  int operators;
  unsigned spins;
};

/// The model's first and last layer are one table; passes, and ends of steps, are short.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(int stages) {
    table = register_module("table", torch::nn::Embedding(7, 4));
    for (int i = 0; i < stages; ++i) {
      layers.push_back(register_module(c10::str("layer", i), torch::nn::Linear(4, 4)));
    }
  }
  Tensor forward(const Tensor& words) {
    Tensor x = table(words);
    for (auto& layer : layers) {
      x = torch::tanh(layer(x));
      ++operators;
    }
    return torch::matmul(x, table->weight.t());
  }
  torch::nn::Embedding table{nullptr};
  std::vector<torch::nn::Linear> layers;
  std::atomic<int> operators = 0;
};

/// Steps until another rank ends; what the schedule threw then.
std::string train(const World& world, const char* kind, const Moment& moment) {
  torch::manual_seed(1);
  const int stages = kRanks * pipeline::default_chunks(kind);
  const auto net = std::make_shared<NetImpl>(stages);
  InitializeOptions how;
  how.world = world;
  how.example_inputs = [&] { net->forward(torch::zeros({2, 3}, torch::kLong)); };
  std::string places = c10::str("\"table\": [0, ", stages - 1, "]");
  for (int i = 0; i < stages; ++i) places += c10::str(", \"layer", i, "\": ", i);
  const std::string config =
      c10::str(R"({"parallel": {"pipeline": {"size": )", kRanks, R"(, "schedule": ")", kind,
               R"("}}, "stages": {)", places, "}}");
  const ParallelModel parallel =
      initialize(std::shared_ptr<torch::nn::Module>(net), Config::parse(config), how);
  PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(kMicroBatches));
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
  const Tensor words = torch::arange(24).view({8, 3}) % 7;
  const auto step = [&] {
    optimizer.zero_grad();
    schedule.forward_backward_step({words}, [&](const std::vector<Tensor>& micro) {
      return torch::nn::functional::cross_entropy(net->forward(micro[0]).view({-1, 7}),
                                                  micro[0].view({-1}));
    });
    optimizer.step();
  };
  step();
  world.barrier();
  net->operators = 0;
  std::thread killer;
  if (world.rank() == moment.victim) {
    killer = std::thread([&] {
      while (net->operators < moment.operators) std::this_thread::yield();
      for (std::atomic<unsigned> spin = 0; spin < moment.spins; ++spin) {
      }
      ::kill(::getpid(), SIGKILL);
    });
  }
  try {
    while (true) step();
  } catch (const Error& error) {
    return error.what();
  }
}

/// Throws unless it names one of the rank's stages, the pass, the micro-batch and the rank that has
/// ended.
void check(const std::string& message, const char* kind, int rank, const Moment& moment) {
  std::string own;
  const auto rank_of_stage = pipeline::rank_of_stage(kind, kRanks, 0);
  for (size_t stage = 0; stage < rank_of_stage.size(); ++stage) {
    if (rank_of_stage[stage] == rank) own += c10::str(own.empty() ? "" : "|", stage);
  }
  const std::regex expected(c10::str(
      "pipeline stage (", own,
      "), ((forward|backward( of the input| of the weights)?) of micro-batch [0-5]|end of step) "
      "\\(rank ",
      rank, "\\): [\\s\\S]*rank ", moment.victim, " \\(process [0-9]+\\) has ended[\\s\\S]*"));
  OSLO_CHECK(std::regex_match(message, expected), "another error: ", message);
}

TEST(PipelineProcesses, ARankThatIsKilledAtAnyMomentIsNamedByTheOthers) {
  const char* asked = std::getenv("OSLO_TEST_KILLS");
  const int kills = asked != nullptr ? std::atoi(asked) : 9;
  const std::vector<std::string> kinds = pipeline::schedule_kinds();
  const auto before = shared_memory_names();
  std::mt19937 random(17);
  for (int kill = 0; kill < kills; ++kill) {
    const Moment moment{static_cast<int>(random() % kRanks), static_cast<int>(random() % 60),
                        static_cast<unsigned>(random() % 300'000)};
    const char* const kind = kinds[kill % kinds.size()].c_str();
    SCOPED_TRACE(c10::str("kill ", kill, " of rank ", moment.victim, " in ", kind));
    const TemporaryDirectory folder;
    std::vector<pid_t> children;
    for (int rank = 0; rank < kRanks; ++rank) {
      children.push_back(::fork());
      if (children.back() != 0) continue;
      at::set_num_threads(1);
      try {
        const auto store =
            c10::make_intrusive<c10d::FileStore>((folder.path() / "store").string(), kRanks);
        check(train(World::over_store(store, rank, kRanks, kTimeLimit), kind, moment), kind, rank,
              moment);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      int status = 0;
      ::waitpid(children[rank], &status, 0);
      EXPECT_EQ(status, rank == moment.victim ? SIGKILL : 0) << "rank " << rank;
    }
  }
  EXPECT_EQ(shared_memory_names(), before);
}

}  // namespace
}  // namespace oslo::test
