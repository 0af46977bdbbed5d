// All-reduce between ranks of this host, over shared memory and over Gloo, one process a rank:
//
//   bench_collectives [--ranks=2,4] [--largest=67108864] [--json]
//
// Each rank has a core of its own as far as they go round, and one thread. The two take turns,
// round by round, so that what else the machine does hits both. Medians and tenths are of single
// calls on rank 0. --json prints one object a line instead of the table.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "mpu/transport/process_group_gloo.h"
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
};

Options parse(int argc, char** argv) {
  Options options;
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
      std::fprintf(stderr, "bench_collectives [--ranks=2,4] [--largest=67108864] [--json]\n");
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
      group->allreduce(tensors, options)->wait();
      times_.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
  }
  void sort() { std::sort(times_.begin(), times_.end()); }
  double at(double share) const { return times_[static_cast<size_t>(share * (times_.size() - 1))]; }
  void clear() { times_.clear(); }

 private:
  std::vector<double> times_;
};

void report(bool json, int ranks, size_t bytes, const Times& shm, const Times& gloo) {
  const char* format =
      json ? "{\"ranks\": %d, \"bytes\": %zu, \"shm_us\": %.2f, \"shm_p10\": %.2f, \"shm_p90\": "
             "%.2f, \"gloo_us\": %.2f, \"gloo_p10\": %.2f, \"gloo_p90\": %.2f, \"ratio\": %.2f}\n"
           : "%5d %9zu %10.1f (%.1f to %.1f) %10.1f (%.1f to %.1f) %8.1fx\n";
  std::printf(format, ranks, bytes, shm.at(0.5), shm.at(0.1), shm.at(0.9), gloo.at(0.5),
              gloo.at(0.1), gloo.at(0.9), gloo.at(0.5) / shm.at(0.5));
  std::fflush(stdout);
}

void run_rank(const Options& options, int rank, int ranks, const std::string& path) {
  pin(rank);
  at::set_num_threads(1);
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::FileStore>(path, ranks);
  oslo::Rendezvous rendezvous;
  const Group gloo = oslo::make_gloo_backend(
      rendezvous, c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank, ranks);
  const Group shm = oslo::make_shared_memory_backend(
      c10::make_intrusive<c10d::PrefixStore>("shm", store), rank, ranks);
  for (const size_t bytes : kSizes) {
    if (bytes > options.largest) break;
    at::Tensor tensor = at::zeros({static_cast<int64_t>(bytes / sizeof(float))});
    const int shm_calls = bytes <= 1 << 16 ? 1000 : bytes <= 1 << 22 ? 40 : 3;
    const int gloo_calls = bytes <= 1 << 22 ? 20 : 3;
    Times shm_times, gloo_times;
    for (int round = 0; round < 6; ++round) {
      shm_times.measure(shm, tensor, shm_calls);
      gloo_times.measure(gloo, tensor, gloo_calls);
      if (round > 0) continue;  // the first one warms up
      shm_times.clear();
      gloo_times.clear();
    }
    shm_times.sort();
    gloo_times.sort();
    if (rank == 0) report(options.json, ranks, bytes, shm_times, gloo_times);
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
    std::printf("ranks     bytes   shm, us (tenths)          Gloo, us (tenths)          ratio\n");
    std::fflush(stdout);
  }
  bool fine = true;
  for (const int ranks : options.ranks) fine = run_ranks(options, ranks) && fine;
  return fine ? 0 : 1;
}
