#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/transport/shared_memory/backend.h"
#include "mpu/transport/shared_memory/segment/segment.h"
#include "tests/support/shared_memory_names.h"
#include "tests/support/temporary_directory.h"

// The shared memory backend between processes. This process only forks, so that no child inherits
// half a thread pool.
namespace oslo {
namespace {

namespace fs = std::filesystem;
using ::oslo::test::shared_memory_names;
using ::oslo::test::TemporaryDirectory;
using Tensors = std::vector<at::Tensor>;

void expect(bool condition, const std::string& what) {
  if (!condition) throw Error(what);
}

/// Forks `ranks` processes that meet over a file and run `body`; returns their process ids. A child
/// ends with 1 when it throws.
std::vector<pid_t> fork_ranks(int ranks, const fs::path& folder,
                              const std::function<void(SharedMemoryBackend&, int)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    at::set_num_threads(1);
    try {
      auto options = c10::make_intrusive<SharedMemoryBackend::Options>(std::chrono::seconds(60));
      options->group_name = "of processes";
      const auto store = c10::make_intrusive<c10d::FileStore>((folder / "store").string(), ranks);
      const auto group = c10::make_intrusive<SharedMemoryBackend>(store, rank, ranks, options);
      body(*group, rank);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  return children;
}

int status_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

void all_reduce(SharedMemoryBackend& group, int64_t size, int rank) {
  Tensors tensors{at::full({size}, rank + 1.0)};
  group.allreduce(tensors, {})->wait();
  const double sum = group.getSize() * (group.getSize() + 1) / 2;
  expect((tensors[0] == sum).all().item<bool>(), c10::str("all_reduce of ", size, " is wrong"));
}

class SharedMemoryProcesses : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SharedMemoryProcesses, ::testing::Values(2, 4, 6));

TEST_P(SharedMemoryProcesses, CollectivesAndMessages) {
  const TemporaryDirectory folder;
  const auto children = fork_ranks(GetParam(), folder.path(), [](auto& group, int rank) {
    const int ranks = group.getSize();
    for (int i = 0; i < 300; ++i) all_reduce(group, i % 100 == 0 ? 300'000 : i, rank);
    for (const int64_t size : {1, 200'000}) {
      at::Tensor part = at::full({size}, 1.0 * rank), whole = at::empty({ranks, size});
      group._allgather_base(whole, part, {})->wait();
      for (int r = 0; r < ranks; ++r) expect((whole[r] == r).all().template item<bool>(), "gather");
      Tensors sent{part}, received{at::empty_like(part)};
      const auto send = group.send(sent, (rank + 1) % ranks, 7);
      group.recv(received, (rank + ranks - 1) % ranks, 7)->wait();
      send->wait();
      expect((received[0] == (rank + ranks - 1) % ranks).all().template item<bool>(), "message");
    }
    group.barrier({})->wait();
  });
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
}

TEST(SharedMemoryProcess, KilledAtAnyMomentItIsNamedAndLeavesNothing) {
  const char* asked = std::getenv("OSLO_TEST_KILLS");
  const int kills = asked != nullptr ? std::atoi(asked) : 10;
  const auto before = shared_memory_names();
  std::mt19937 random(42);
  for (int kill = 0; kill < kills; ++kill) {
    constexpr int kRanks = 3;
    const int victim = static_cast<int>(random() % kRanks);
    const auto operations = static_cast<int>(random() % 400);
    const auto spins = random() % 100'000;
    const TemporaryDirectory folder;
    const auto children = fork_ranks(kRanks, folder.path(), [&](auto& group, int rank) {
      std::atomic<int> done = 0;
      std::thread killer;
      if (rank == victim) {
        killer = std::thread([&] {
          while (done < operations) std::this_thread::yield();
          for (std::atomic<uint32_t> spin = 0; spin < spins; ++spin) {
          }
          ::kill(::getpid(), SIGKILL);
        });
      }
      std::mt19937 shared(kill);
      try {
        while (true) {
          all_reduce(group, static_cast<int64_t>(shared() % 10 == 0 ? 200'000 : shared() % 100),
                     rank);
          if (done++ % 3 == 0) group.barrier({})->wait();
        }
      } catch (const Error& error) {
        const std::string message = error.what();
        for (const std::string& part :
             {c10::str("rank ", victim, " (process "), std::string("ended"),
              std::string(" number "), std::string("of processes")}) {
          expect(message.find(part) != std::string::npos, message + " lacks " + part);
        }
      }
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(status_of(children[rank]), rank == victim ? SIGKILL : 0)
          << "rank " << rank << ", kill " << kill;
    }
  }
  EXPECT_EQ(shared_memory_names(), before);
}

TEST(SharedMemorySegment, NamedOnesAreTheirOwnersAndGo) {
  using shared_memory::Segment;
  const auto before = shared_memory_names();
  const auto segment = Segment::create(Segment::Kind::named, 1 << 16);
  segment->commit(0, segment->bytes());
  struct stat status {};
  ASSERT_EQ(::stat(segment->address().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  const auto other = Segment::open(segment->address(), segment->bytes(), segment->inode());
  segment->unlink();
  EXPECT_EQ(shared_memory_names(), before);
  segment->data()[100] = std::byte{42};
  EXPECT_EQ(other->data()[100], std::byte{42});
  EXPECT_THROW(Segment::open(segment->address(), segment->bytes(), segment->inode()), Error);
  const auto anonymous = Segment::create(Segment::Kind::anonymous, 1 << 16);
  EXPECT_EQ(shared_memory_names(), before);
  EXPECT_THROW(Segment::open(anonymous->address(), 1 << 17, anonymous->inode()), Error);
  EXPECT_EQ(Segment::open(anonymous->address(), 1 << 16, anonymous->inode())->bytes(), 1U << 16);
}

}  // namespace
}  // namespace oslo
