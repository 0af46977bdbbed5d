#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>
#include "tests/support/free_port.h"
#include "tests/support/temporary_directory.h"

// A job of four ranks, of which one is killed, stopped, throws or exits.
namespace oslo::test {

using torch::Tensor;
namespace fs = std::filesystem;

inline constexpr int kRanks = 4;
/// So long ranks wait where one is stopped, or does not come to a save or a load, in seconds.
/// Enough for a start on a busy machine.
inline constexpr int kTimeLimit = 20;

inline constexpr std::array kJobs{"tensor",     "data", "tensor x data", "pipeline",
                                  "initialize", "save", "load",          "one copy"};
inline constexpr std::array kTransports{"auto", "gloo", "two hosts", "a host alone"};
inline constexpr std::array kWays{"kill", "stop", "throw", "exit"};

struct Fault {
  std::string job, transport, way;
  int victim = 0;
  int moment = 0;      ///< forwards, saves or loads before it
  unsigned spins = 0;  ///< and a little later, from another thread

  std::string to_text() const {
    return c10::str(way, " of rank ", victim, " in ", job, " over ", transport, ", behind ", moment,
                    " and ", spins);
  }
};

// --- one rank of the job ---

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::function<void()> step) : step(std::move(step)) {
    for (int i = 0; i < kRanks; ++i) {
      up.push_back(register_module(c10::str("up", i), torch::nn::Linear(6, 9)));
      down.push_back(register_module(c10::str("down", i), torch::nn::Linear(9, 6)));
    }
  }
  Tensor forward(Tensor x) {
    for (int i = 0; i < kRanks; ++i) x = x + down[i](torch::relu(up[i](x)));
    step();
    return x;
  }
  std::function<void()> step;
  std::vector<torch::nn::Linear> up, down;
};
TORCH_MODULE(Net);

inline std::string text_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? "" : text;
}

/// Does to this process what the fault says, when `progress` has come to its moment.
class Victim {
 public:
  Victim(const Fault& fault, const fs::path& folder) : fault_(fault) {
    const int signal = fault.way == "kill" ? SIGKILL : fault.way == "stop" ? SIGSTOP : 0;
    if (signal == 0) return;
    std::thread([this, signal, died = folder / "died"] {
      while (progress_ <= fault_.moment) std::this_thread::yield();
      for (std::atomic<unsigned> spin = 0; spin < fault_.spins; ++spin) {
      }
      std::ofstream(died) << std::chrono::steady_clock::now().time_since_epoch().count();
      ::kill(::getpid(), signal);
    }).detach();
  }
  void step() {
    if (progress_++ != fault_.moment) return;
    if (fault_.way == "throw") throw std::runtime_error("no more data");
    if (fault_.way == "exit") std::exit(3);
  }

 private:
  const Fault fault_;
  std::atomic<int> progress_ = 0;
};

/// Steps, saves or loads until it throws.
inline void work(const std::string& job, const fs::path& scratch,
                 const std::function<void()>& step) {
  torch::manual_seed(1);
  bool started = false;
  Net net([&] {
    if (started) step();
  });
  std::string config = R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 4}})";
  if (job == "tensor x data" || job == "initialize" || job == "save" || job == "load") {
    config = R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2}})";
  }
  if (job == "data") config = "{}";
  if (job == "one copy") config = R"({"zero_optimization": {"enabled": true, "stage": 3}})";
  if (job == "pipeline") {
    config = R"({"model_parallelism": {"enable": true, "pipeline_parallel_size": 4}})";
  }
  const Tensor batch = torch::arange(48.).to(torch::kFloat).view({8, 6}) / 48;
  InitializeOptions how;
  how.example_inputs = [&] { net->forward(batch); };
  const ParallelModel parallel = initialize(net, Config::parse(config), how);
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  const fs::path folder = scratch / "saved";
  if (job == "pipeline") {
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4));
    started = true;
    while (true) {
      optimizer.zero_grad();
      schedule.forward_backward_step({batch}, [&](const std::vector<Tensor>& micro) {
        return net->forward(micro[0]).square().sum();
      });
      optimizer.step();
    }
  }
  if (job == "initialize") {
    started = true;
    while (true) {
      step();
      Net another([] {});
      initialize(another, Config::parse(config));
    }
  }
  if (job == "save" || job == "load") {
    if (job == "load") parallel.save_parallelized(folder);
    started = true;
    while (true) {
      step();
      if (job == "save") parallel.save_parallelized(folder);
      if (job == "load") parallel.from_parallelized(folder);
    }
  }
  if (job == "one copy") {
    started = true;
    while (true) {
      optimizer.zero_grad();
      net->forward(batch).square().sum().backward();
      optimizer.step();
    }
  }
  DistributedDataParallel<Net> ddp(net, parallel.mpu().get_data_parallel_group());
  started = true;
  while (true) {
    optimizer.zero_grad();
    ddp.forward(batch).square().sum().backward();
    optimizer.step();
  }
}

/// In a process of its own.
inline void run_rank(const Fault& fault, int rank, const fs::path& folder) {
  torch::set_num_threads(1);
  try {
    if (rank == fault.victim) {
      Victim victim(fault, folder);
      work(fault.job, folder, [&] { victim.step(); });
    } else {
      work(fault.job, folder, [] {});
    }
  } catch (const std::exception& error) {
    std::ofstream(folder / c10::str("rank", rank))
        << std::chrono::steady_clock::now().time_since_epoch().count() << "\n"
        << error.what();
    ::_exit(7);
  }
}

// --- the job ---

/// A process for each rank. They are copies of this one, which has not used LibTorch: they start in
/// a fraction of the time that loading it again takes.
class RunningJob {
 public:
  explicit RunningJob(const Fault& fault) : fault_(fault) {
    const std::string port = std::to_string(free_port());
    for (int rank = 0; rank < kRanks; ++rank) {
      std::map<std::string, std::string> settings{{"OSLO_LAUNCHER", "run"},
                                                  {"RANK", std::to_string(rank)},
                                                  {"LOCAL_RANK", std::to_string(rank)},
                                                  {"WORLD_SIZE", std::to_string(kRanks)},
                                                  {"LOCAL_WORLD_SIZE", std::to_string(kRanks)},
                                                  {"MASTER_ADDR", "127.0.0.1"},
                                                  {"MASTER_PORT", port},
                                                  {"OSLO_TIMEOUT", std::to_string(kTimeLimit)}};
      if (fault.transport == "gloo") settings["OSLO_BACKEND"] = "gloo";
      if (fault.transport == "two hosts") settings["OSLO_HOST"] = rank < 2 ? "a" : "b";
      if (fault.transport == "a host alone") settings["OSLO_HOST"] = rank < 3 ? "a" : "b";
      ranks_.push_back(::fork());
      if (ranks_.back() != 0) continue;
      for (const auto& [name, text] : settings) ::setenv(name.c_str(), text.c_str(), 1);
      const int log =
          ::open((folder_ / c10::str("log", rank)).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
      ::dup2(log, STDOUT_FILENO);
      ::dup2(log, STDERR_FILENO);
      run_rank(fault, rank, folder_.path());
      ::_exit(99);
    }
  }
  ~RunningJob() {
    for (const pid_t rank : ranks_) ::kill(rank, SIGKILL);
    for (const pid_t rank : ranks_) ::waitpid(rank, nullptr, 0);
  }
  RunningJob(const RunningJob&) = delete;
  RunningJob& operator=(const RunningJob&) = delete;

  /// Every rank but the victim has ended, with an error that names the victim and nobody else.
  bool check() const {
    bool right = true;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == fault_.victim) continue;
      const std::string wrong = what_is_wrong(rank);
      EXPECT_EQ(wrong, "") << "rank " << rank;
      right = right && wrong.empty();
    }
    return right;
  }

  const std::vector<pid_t>& ranks() const { return ranks_; }
  bool victim_has_ended() const {
    siginfo_t info{};
    ::waitid(P_PID, ranks_[fault_.victim], &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid != 0;
  }

  /// The longest that a rank took to know, in milliseconds; of a rank that was killed.
  double slowest() const {
    const std::string died = read("died");
    if (died.empty()) return 0;
    double slowest = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == fault_.victim) continue;
      const std::string told = read(c10::str("rank", rank));
      if (told.empty()) continue;
      slowest = std::max(slowest, static_cast<double>(std::stoll(told) - std::stoll(died)) / 1e6);
    }
    return slowest;
  }

 private:
  std::string what_is_wrong(int rank) const {
    const std::string log = read(c10::str("log", rank));
    if (!has_ended(ranks_[rank])) return "it waits for ever\n" + log;
    const std::string told = read(c10::str("rank", rank));
    if (told.empty()) return "it ended without an error\n" + log;
    const std::set<int> ranks = named(told);
    if (ranks.count(fault_.victim) == 0) return "the rank that failed is not named\n" + told;
    // Others only where they had ended, too.
    for (const int other : ranks) {
      const std::string earlier = read(c10::str("rank", other));
      if (other != fault_.victim && (earlier.empty() || std::stoll(earlier) >= std::stoll(told))) {
        return c10::str("rank ", other, " was alive\n", told);
      }
    }
    return "";
  }

  std::string read(const std::string& name) const {
    std::ifstream file(folder_ / name);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  /// The limit only keeps a broken job from hanging the test.
  static bool has_ended(pid_t process) {
    const int event = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
    pollfd waited{event, POLLIN, 0};
    const bool ended = ::poll(&waited, 1, 120'000) == 1;
    ::close(event);
    return ended;
  }

  /// The ranks of which an error says that they are the cause.
  static std::set<int> named(const std::string& error) {
    static const std::regex cause(
        "rank ([0-9]+)(?: \\(process [0-9]+\\) (?:has ended|is stopped)| has thrown| has aborted| "
        "failed: |,? which it |: no more data| on another host does not answer)"
        "|which rank ([0-9]+) hosts");
    std::set<int> ranks;
    for (std::sregex_iterator found(error.begin(), error.end(), cause), end; found != end;
         ++found) {
      ranks.insert(std::stoi((*found)[1].matched ? (*found)[1] : (*found)[2]));
    }
    return ranks;
  }

  const Fault fault_;
  const TemporaryDirectory folder_;
  std::vector<pid_t> ranks_;
};

}  // namespace oslo::test
