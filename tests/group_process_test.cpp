// Groups between processes: what the ledger says that Gloo moved, beside what the kernel says that
// its connections received, and messages of a process that is killed.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// After netinet/in.h, whose names it would define again.
#include <linux/tcp.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/group/group.h"
#include "mpu/transport/process_group.h"
#include "tests/support/temporary_directory.h"

namespace oslo {
namespace {

constexpr int kRanks = 3;

/// Bytes that this process's TCP connections have received.
int64_t received() {
  int64_t sum = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
    sum += static_cast<int64_t>(info.tcpi_bytes_received);
  }
  return sum;
}

void compare(Group& group, const char* name, const std::function<void()>& operation) {
  // Nobody is ahead while somebody reads its counters.
  group.exchange(0);
  const int64_t before = received();
  group.exchange(0);
  group.ledger().clear();
  operation();
  const int64_t moved = group.ledger().moved();
  group.exchange(0);
  const int64_t came = received() - before;
  group.exchange(0);
  // Gloo puts 48 bytes before each piece.
  const int64_t most = moved + moved / 50 + 16 * 1024;
  OSLO_CHECK(came >= moved && came <= most, name, ": the ledger says that ", moved,
             " bytes moved, the connections received ", came);
}

void compare_all(Group& group) {
  const int rank = group.rank();
  const std::vector<int64_t> even{50'000, 50'000, 50'000}, uneven{100'000, 0, 50'000};
  for (const auto& sizes : {even, uneven}) {
    compare(group, "all_reduce", [&] { group.all_reduce(at::ones({150'000})); });
    compare(group, "all_gather", [&] { group.all_gather(at::ones({sizes[rank]}), 0, sizes); });
    compare(group, "reduce_scatter", [&] { group.reduce_scatter(at::ones({150'000}), 0, sizes); });
    compare(group, "reduce_scatter of columns", [&] {
      group.reduce_scatter(at::ones({2, 150'000}), 1, sizes);
    });
    compare(group, "broadcast", [&] {
      at::Tensor tensor = at::ones({150'000});
      group.broadcast(tensor, 1);
    });
    compare(group, "messages", [&] {
      group.send({at::ones({150'000}), at::ones({2})}, (rank + 1) % kRanks);
      group.receive((rank + kRanks - 1) % kRanks);
    });
  }
}

/// Forks a process a rank, which runs `body` with the group of all; how they ended.
std::vector<int> run(Transport transport, const std::function<void(Group&)>& body) {
  const test::TemporaryDirectory folder;
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    at::set_num_threads(1);
    try {
      Rendezvous rendezvous;
      rendezvous.store =
          c10::make_intrusive<c10d::FileStore>((folder.path() / "store").string(), kRanks);
      Group group("all", {0, 1, 2}, rank,
                  make_process_group(rendezvous, "all", rank, {0, 1, 2}, transport));
      body(group);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) {
    statuses.push_back(0);
    ::waitpid(child, &statuses.back(), 0);
  }
  return statuses;
}

TEST(GroupOfProcesses, GlooMovesWhatTheLedgerSays) {
  EXPECT_EQ(run(Transport::gloo, compare_all), (std::vector<int>{0, 0, 0}));
}

TEST(GroupOfProcesses, AMessageFromOneThatIsKilled) {
  for (const Transport transport : {Transport::shared_memory, Transport::gloo}) {
    const auto statuses = run(transport, [](Group& group) {
      if (group.rank() == 0) {
        group.send({at::arange(100'000)}, 1);
        group.receive(1);  // it has come
        ::raise(SIGKILL);
      }
      if (group.rank() != 1) return;
      OSLO_CHECK(at::equal(group.receive(0)[0], at::arange(100'000)), "something else came");
      group.send({at::ones({1})}, 0);
      std::string seen;
      try {
        group.receive(0, 4);
      } catch (const Error& error) {
        seen = error.what();
      }
      OSLO_CHECK(seen.rfind("receive from rank 0 with tag 4 over group all", 0) == 0,
                 "seen: ", seen);
    });
    EXPECT_EQ(statuses, (std::vector<int>{SIGKILL, 0, 0})) << to_string(transport);
  }
}

}  // namespace
}  // namespace oslo
