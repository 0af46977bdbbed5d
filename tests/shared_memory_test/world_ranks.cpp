// What the shared memory backend says of ranks are their numbers in the world, also where the group
// is not the world: every message that names one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "tests/shared_memory_test/group_calls.h"
#include "tests/support/shared_memory_group.h"

namespace oslo::test {
namespace {

using namespace std::chrono_literals;

/// By the group's own numbers, none of which is one of these.
const std::vector<uint64_t> kInWorld{7, 4, 9};

using Body = std::function<void(SharedMemoryBackend&, int)>;

/// What each rank of a group of three was told.
std::vector<std::string> told(const Body& body,
                              const std::function<void(ShmOptions&, int)>& adjust = {}) {
  return on_group(3, body, [&](ShmOptions& options, int rank) {
    options.global_ranks_in_group = kInWorld;
    if (adjust) adjust(options, rank);
  });
}

/// Each message that a rank was told names ranks of the world alone; some rank was told `words`.
void expect_in_world(const std::vector<std::string>& messages, const std::string& words) {
  static const std::regex naming("ranks? ([0-9]+)(?: and ([0-9]+))?");
  bool found = false;
  for (const std::string& message : messages) {
    found |= message.find(words) != std::string::npos;
    for (std::sregex_iterator next(message.begin(), message.end(), naming), end; next != end;
         ++next) {
      for (const int part : {1, 2}) {
        if (!(*next)[part].matched) continue;
        EXPECT_THAT(kInWorld, ::testing::Contains(std::stoul((*next)[part]))) << message;
      }
    }
  }
  EXPECT_TRUE(found) << "no <" << words << "> in " << ::testing::PrintToString(messages);
}

TEST(SharedMemoryWorldRanks, OfThoseWhoDidDifferentThings) {
  expect_in_world(told([](SharedMemoryBackend& group, int rank) {
                    start_all_reduce(group, at::ones({rank == 1 ? 3 : 4}))->wait();
                  }),
                  "rank 4 did all_reduce number 1");
  expect_in_world(told([](SharedMemoryBackend& group, int rank) {
                    Tensors tensors{at::ones({4})};
                    c10d::BroadcastOptions options;
                    options.rootRank = rank == 2 ? 2 : 0;
                    group.broadcast(tensors, options)->wait();
                  }),
                  "root rank 9");
}

TEST(SharedMemoryWorldRanks, OfThoseWhoLeftOrCameLate) {
  expect_in_world(told([](SharedMemoryBackend& group, int rank) {
                    if (rank != 1) barrier(group);
                  }),
                  "rank 4 has left the group");
  expect_in_world(told([](SharedMemoryBackend& group, int rank) {
                    if (rank == 0) group.setTimeout(60ms);
                    if (rank == 0) return barrier(group);
                    Tensors tensors{at::ones({1})};
                    group.recv(tensors, 0, 0)->wait();
                  }),
                  "rank 7 waited 60 ms for rank 4, rank 9");
  expect_in_world(told([](SharedMemoryBackend& group, int rank) {
                    if (rank == 2) return group.abort();
                    barrier(group);
                  }),
                  "rank 9 has aborted group test");
}

TEST(SharedMemoryWorldRanks, OfMessages) {
  expect_in_world(told([](SharedMemoryBackend& group, int rank) {
                    Tensors tensors{at::ones({rank == 1 ? 3 : 4})};
                    if (rank == 1) group.send(tensors, 0, 5)->wait();
                    if (rank == 0) group.recv(tensors, 1, 5)->wait();
                  }),
                  "rank 4 sent 12 bytes");
  expect_in_world(told([](SharedMemoryBackend& group, int rank) {
                    Tensors tensors{at::ones({1})};
                    if (rank == 0) group.recv(tensors, 2, 5)->wait(1ms);
                    barrier(group);
                  }),
                  "receive from rank 9 with tag 5");
  expect_in_world(told([](SharedMemoryBackend& group, int rank) {
                    Tensors tensors{at::ones({1})};
                    if (rank == 1) group.recv(tensors, 2, 5)->wait();
                  }),
                  "a message between rank 4 and another");
  expect_in_world(told(
                      [](SharedMemoryBackend& group, int rank) {
                        Tensors tensors{at::ones({4'000})};
                        for (int tag = 0; rank == 2 && tag < 10; ++tag) {
                          group.send(tensors, 1, tag);
                        }
                        if (rank == 1) group.recv(tensors, 2, 9)->wait();
                        barrier(group);
                      },
                      [](ShmOptions& options, int) { options.aside_bytes = 20'000; }),
                  "rank 4 of group test keeps");
}

TEST(SharedMemoryWorldRanks, OfThoseWhoMeet) {
  const Body nothing = [](SharedMemoryBackend&, int) {};
  expect_in_world(
      told(nothing, [](ShmOptions& options, int rank) { options.host = rank == 2 ? "b" : "a"; }),
      "ranks 7 and 9 of group test cannot share memory");
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (const auto& [rank, words] : {std::pair{0, "rank 7 of group test waited for rank 4"},
                                    std::pair{2, "rank 9 of group test waited for rank 7"}}) {
    auto options = shm_options("test", 60ms);
    options->global_ranks_in_group = kInWorld;
    const auto alone = c10::make_intrusive<c10d::PrefixStore>(words, store);
    expect_in_world({error_of([&, rank = rank] {
                      c10::make_intrusive<SharedMemoryBackend>(alone, rank, 3, options);
                    })},
                    words);
  }
}

}  // namespace
}  // namespace oslo::test
