// All-reduce between ranks of this host, by two carriers, one process a rank:
//
//   bench_collectives [--ranks=2,4] [--largest=67108864] [--json] [--device=cpu]
//
//   --device=     beside each other
//   cpu           shared memory (shm) and Gloo
//   cuda:0        both by way of the host's memory, ranks sharing a GPU
//   cuda          NCCL, a GPU for each rank, and by way of the host's memory (staged)
//
// Each rank has a core of its own as far as they go round, and one thread. The two take turns,
// round by round, so that what else the machine does hits both. Medians and tenths are of single
// calls on rank 0, until the device is done. --json prints one object a line instead of the table.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "benchmarks/device.h"
#include "mpu/transport/backends/cuda_support.h"
#include "mpu/transport/backends/process_group_gloo.h"
#include "mpu/transport/backends/staged_backend.h"
#include "mpu/transport/shared_memory/backend.h"

namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;

constexpr size_t kKilo = 1 << 10, kMega = 1 << 20;
constexpr size_t kSizes[] = {64,    512,       4 * kKilo,  32 * kKilo, 256 * kKilo,
                             kMega, 4 * kMega, 16 * kMega, 64 * kMega};

struct Options {
  std::vector<int> ranks = {2, 4};
  size_t largest = 64 << 20;
  bool json = false;
  std::string device = "cpu";

  std::array<const char*, 2> carriers() const {
    if (device == "cuda") return {"nccl", "staged"};
    return {"shm", "gloo"};
  }
};

Options parse(int argc, char** argv) {
  Options options;
  options.device = bench::take_device_name(argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string value = word.substr(word.find('=') + 1);
    if (word.rfind("--ranks=", 0) == 0) {
      options.ranks.clear();
      for (size_t begin = 0; begin < value.size(); begin = value.find_first_of(',', begin) + 1) {
        options.ranks.push_back(std::atoi(value.c_str() + begin));
        if (value.find(',', begin) == std::string::npos) break;
      }
    } else if (word.rfind("--largest=", 0) == 0) {
      options.largest = std::strtoull(value.c_str(), nullptr, 10);
    } else if (word == "--json") {
      options.json = true;
    } else {
      std::fprintf(stderr,
                   "bench_collectives [--ranks=2,4] [--largest=67108864] [--json] "
                   "[--device=cpu|cuda|cuda:0]\n");
      std::exit(2);
    }
  }
  return options;
}

void pin(int rank) {
  cpu_set_t cores, mine;
  sched_getaffinity(0, sizeof(cores), &cores);
  int skip = rank % CPU_COUNT(&cores);
  CPU_ZERO(&mine);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores) && skip-- == 0) CPU_SET(core, &mine);
  }
  sched_setaffinity(0, sizeof(mine), &mine);
}

class Times {
 public:
  /// `calls` all-reduces of `tensor`; microseconds each.
  void measure(const Group& group, at::Tensor& tensor, int calls) {
    using Clock = std::chrono::steady_clock;
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.asyncOp = false;
    for (int i = 0; i < calls; ++i) {
      const auto begin = Clock::now();
      const auto work = group->allreduce(tensors, options);
      if (work) work->wait();  // NCCL gives none to a caller that waits
      bench::finish(tensor.device());
      times_.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
  }
  void sort() { std::sort(times_.begin(), times_.end()); }
  double at(double share) const { return times_[static_cast<size_t>(share * (times_.size() - 1))]; }
  void clear() { times_.clear(); }

 private:
  std::vector<double> times_;
};

void report(const Options& options, int ranks, size_t bytes, const std::array<Times, 2>& times) {
  const auto [first, second] = options.carriers();
  const auto& [a, b] = times;
  const double ratio = b.at(0.5) / a.at(0.5);
  if (options.json) {
    std::printf(
        "{\"ranks\": %d, \"bytes\": %zu, \"%s_us\": %.2f, \"%s_p10\": %.2f, \"%s_p90\": %.2f, "
        "\"%s_us\": %.2f, \"%s_p10\": %.2f, \"%s_p90\": %.2f, \"ratio\": %.2f}\n",
        ranks, bytes, first, a.at(0.5), first, a.at(0.1), first, a.at(0.9), second, b.at(0.5),
        second, b.at(0.1), second, b.at(0.9), ratio);
  } else {
    std::printf("%5d %9zu %10.1f (%.1f to %.1f) %10.1f (%.1f to %.1f) %8.1fx\n", ranks, bytes,
                a.at(0.5), a.at(0.1), a.at(0.9), b.at(0.5), b.at(0.1), b.at(0.9), ratio);
  }
  std::fflush(stdout);
}

Group by_way_of_the_host(Group inner, int rank, int ranks) {
  return c10::make_intrusive<oslo::StagedBackend>(rank, ranks, std::move(inner));
}

std::array<Group, 2> make_carriers(const Options& options, const torch::Device& device, int rank,
                                   int ranks, const c10::intrusive_ptr<c10d::Store>& store) {
  const auto own = [&](const char* name) {
    return c10::make_intrusive<c10d::PrefixStore>(name, store);
  };
  const Group shm = oslo::make_shared_memory_backend(own("shm"), rank, ranks);
  if (options.device == "cuda") {
    oslo::CommunicatorGroup group{"bench", {}, rank, std::chrono::minutes(10)};
    for (int member = 0; member < ranks; ++member) group.ranks.push_back(member);
    return {oslo::cuda_support()->make_nccl(own("nccl"), group),
            by_way_of_the_host(shm, rank, ranks)};
  }
  oslo::Rendezvous rendezvous;
  const Group gloo = oslo::make_gloo_backend(rendezvous, own("gloo"), rank, ranks);
  if (device.is_cpu()) return {shm, gloo};
  return {by_way_of_the_host(shm, rank, ranks), by_way_of_the_host(gloo, rank, ranks)};
}

/// "cuda" as a number: a GPU for each rank.
std::string device_of(const Options& options, int rank) {
  return options.device == "cuda" ? "cuda:" + std::to_string(rank) : options.device;
}

void run_rank(const Options& options, int rank, int ranks, const std::string& path) {
  pin(rank);
  at::set_num_threads(1);
  const torch::Device device = bench::device_named(device_of(options, rank));
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::FileStore>(path, ranks);
  const auto carriers = make_carriers(options, device, rank, ranks, store);
  for (const size_t bytes : kSizes) {
    if (bytes > options.largest) break;
    at::Tensor tensor = at::zeros({static_cast<int64_t>(bytes / sizeof(float))}, device);
    const std::array<int, 2> calls{bytes <= 1 << 16   ? 1000
                                   : bytes <= 1 << 22 ? 40
                                                      : 3,
                                   bytes <= 1 << 22 ? 20 : 3};
    std::array<Times, 2> times;
    for (int round = 0; round < 6; ++round) {
      for (size_t i = 0; i < carriers.size(); ++i) {
        times[i].measure(carriers[i], tensor, calls[i]);
        if (round == 0) times[i].clear();  // it warms up
      }
    }
    for (Times& each : times) each.sort();
    if (rank == 0) report(options, ranks, bytes, times);
  }
}

/// Ranks are forked before anything of LibTorch has run, so that none inherits half a thread pool.
bool run_ranks(const Options& options, int ranks) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("bench_collectives_" + std::to_string(::getpid()));
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    try {
      run_rank(options, rank, ranks, path);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  bool fine = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    fine = fine && status == 0;
  }
  std::filesystem::remove(path);
  return fine;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (!options.json) {
    const auto [first, second] = options.carriers();
    std::printf("ranks     bytes   %s, us (tenths)          %s, us (tenths)          ratio\n",
                first, second);
    std::fflush(stdout);
  }
  bool fine = true;
  for (const int ranks : options.ranks) fine = run_ranks(options, ranks) && fine;
  return fine ? 0 : 1;
}
