// The transport of ranks that share a GPU, by what it does to tensors; their place is played by the
// CPU here, where a copy is done when its call returns. streams.cpp looks at the order of copies.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "mpu/base/time_limit.h"
#include "mpu/group/group.h"
#include "mpu/group/messages.h"
#include "mpu/transport/backends/staged_backend.h"
#include "mpu/transport/counted_process_group.h"
#include "tests/support/error_of.h"
#include "tests/support/shared_memory_group.h"
#include "tests/support/uneven_parts.h"

namespace oslo {
namespace {

using at::Tensor;

constexpr int kRanks = 3;
constexpr int64_t kChunk = 64;  ///< bytes: eight doubles

/// `body` on each rank, a thread each, with a group over the staged transport.
std::vector<std::string> on_staged(const std::function<void(Group&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  return test::on_threads(kRanks, [&](int rank) {
    auto process_group = c10::make_intrusive<CountedProcessGroup>(
        c10::make_intrusive<c10d::PrefixStore>("pg", store), rank, std::vector<int>{0, 1, 2},
        kDefaultTimeout);
    process_group->setBackend(
        c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
        c10::make_intrusive<StagedBackend>(
            rank, kRanks,
            make_shared_memory_backend(c10::make_intrusive<c10d::PrefixStore>("shm", store), rank,
                                       kRanks, test::shm_options("staged")),
            kChunk));
    process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    Group group("all", {0, 1, 2}, rank, process_group);
    body(group);
  });
}

void expect_on_staged(const std::function<void(Group&)>& body) {
  EXPECT_THAT(on_staged(body), testing::Each(testing::IsEmpty()));
}

TEST(Staged, ReducesInChunks) {
  expect_on_staged([](Group& group) {
    for (const int64_t size : {0, 1, 7, 8, 9, 100}) {
      const Tensor numbers = at::arange(size, at::kDouble);
      EXPECT_TRUE(at::equal(group.all_reduce(numbers * (group.rank() + 1)), numbers * 6));
      EXPECT_TRUE(at::equal(group.all_reduce(numbers + group.rank(), Reduction::max), numbers + 2));
    }
    const Tensor turned = at::arange(12, at::kFloat).view({3, 4}).t();
    EXPECT_TRUE(at::equal(group.all_reduce(turned.clone()), turned * 3));
  });
}

TEST(Staged, WritesTheTensorItWasGivenAndCountsNoVersion) {
  expect_on_staged([](Group& group) {
    Tensor numbers = at::full({20}, group.rank(), at::kDouble);
    const auto version = numbers._version();
    const Tensor sum = group.all_reduce(numbers);
    EXPECT_EQ(sum.const_data_ptr(), numbers.const_data_ptr());
    EXPECT_TRUE(at::equal(numbers, at::full({20}, 3, at::kDouble)));
    EXPECT_EQ(numbers._version(), version);
  });
}

TEST(Staged, ABarrierIsOneOfTheCollectives) {
  expect_on_staged([](Group& group) {
    const Tensor numbers = at::arange(500, at::kDouble);
    for (int i = 0; i < 5; ++i) {
      Pending sum = group.start_all_reduce(numbers * (group.rank() + i));
      group.process_group()->barrier()->wait();
      EXPECT_TRUE(at::equal(sum.wait(), numbers * (3 + 3 * i)));
    }
  });
}

TEST(Staged, ASendDoesNotWaitForThatToAnotherRank) {
  expect_on_staged([](Group& group) {
    // More than what can be under way without a receiver.
    const Tensor large = at::ones({1 << 20}, at::kDouble), word = at::ones({1}, at::kDouble);
    if (group.rank() == 0) {
      group.send(large, 1);
      group.send(word, 2);
    }
    if (group.rank() == 2) {
      EXPECT_TRUE(at::equal(group.receive(0)[0], word));
      group.send(word, 1);
    }
    if (group.rank() == 1) {
      EXPECT_TRUE(at::equal(group.receive(2)[0], word));
      EXPECT_TRUE(at::equal(group.receive(0)[0], large));
    }
  });
}

TEST(Staged, MovesPartsOfAnySizes) {
  expect_on_staged([](Group& group) { test::expect_moves_uneven_parts(group); });
}

TEST(Staged, BroadcastsFromAnyRank) {
  expect_on_staged([](Group& group) {
    for (int root = 0; root < kRanks; ++root) {
      Tensor numbers = at::arange(30, at::kLong) * (group.rank() + 1);
      group.broadcast(numbers, root);
      EXPECT_TRUE(at::equal(numbers, at::arange(30, at::kLong) * (root + 1)));
    }
  });
}

TEST(Staged, StartsManyAndWaitsInAnyOrder) {
  expect_on_staged([](Group& group) {
    std::vector<Pending> started;
    for (int i = 0; i < 9; ++i) {
      started.push_back(group.start_all_reduce(at::full({10 + i}, i + group.rank(), at::kInt)));
    }
    for (int i = 8; i >= 0; --i) {
      EXPECT_TRUE(at::equal(started[i].wait(), at::full({10 + i}, 3 * i + 3, at::kInt)));
    }
  });
}

TEST(Staged, SendsAndReceivesAtOnce) {
  expect_on_staged([](Group& group) {
    const int next = (group.rank() + 1) % kRanks, before = (group.rank() + 2) % kRanks;
    // Every rank receives first: a receive must not be what a send waits behind.
    PendingMessage coming = group.start_receive(before);
    for (int i = 0; i < 4; ++i) group.send(at::full({5 + i}, group.rank(), at::kFloat), next, i);
    group.send(at::full({2, 3}, group.rank(), at::kLong), next, 7);
    for (const int tag : {7, 3, 1, 2}) {
      const Tensor came = group.receive(before, tag)[0];
      EXPECT_TRUE(at::equal(came, at::full_like(came, before)));
    }
    EXPECT_TRUE(at::equal(coming.wait()[0], at::full({5}, before, at::kFloat)));
  });
}

TEST(Staged, CountsWhatEveryChunkBrings) {
  expect_on_staged([](Group& group) {
    group.ledger().clear();
    group.all_reduce(at::ones({20}, at::kDouble));
    EXPECT_EQ(group.ledger().total().bytes, 2 * 2 * 20 / 3 * 8);
    EXPECT_EQ(group.ledger().moved(), 2 * 160);  // small chunks: all of the two others'
    group.ledger().clear();
    group.reduce_scatter(at::ones({5, 4}, at::kDouble), 0, {2, 0, 3});
    EXPECT_EQ(group.ledger().moved(), 2 * 32 * 3);  // padded to the largest
  });
}

TEST(Staged, AnErrorIsTheOperations) {
  const auto errors = on_staged([](Group& group) {
    // Ranks that do not agree on the size: the others hear of it, too.
    group.all_reduce(at::ones({group.rank() == 1 ? 4 : 3}, at::kDouble));
  });
  EXPECT_THAT(errors, testing::Each(testing::HasSubstr("all_reduce over group all")));
}

TEST(Staged, ThePendingResultOfADroppedHandleHurtsNobody) {
  expect_on_staged([](Group& group) {
    { const Pending dropped = group.start_all_reduce(at::ones({100}, at::kDouble)); }
    EXPECT_TRUE(at::equal(group.all_reduce(at::ones({3})), at::full({3}, 3.f)));
  });
}

}  // namespace
}  // namespace oslo
