// The ledger's second column: what transports really move, where it differs from the ring's
// formula.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "mpu/group/group.h"
#include "mpu/transport/counted_process_group.h"
#include "mpu/transport/shared_memory/backend.h"
#include "tests/support/shared_memory_group.h"
#include "tests/support/transport_ranks.h"
#include "tests/support/uneven_parts.h"

namespace oslo {
namespace {

using at::Tensor;
using test::on_transport;

/// Rows of four doubles: 32 bytes.
const std::vector<int64_t> kSizes{2, 0, 3};

Tensor rows(int64_t count) {
  return at::ones({count, 4}, at::kDouble);
}

/// What `operation` adds to both columns.
template <typename Operation>
std::pair<int64_t, int64_t> columns(Group& group, const Operation& operation) {
  group.ledger().clear();
  operation();
  return {group.ledger().total().bytes, group.ledger().moved()};
}

TEST(Moved, SharedMemory) {
  on_transport(3, Transport::shared_memory, [](Group& group) {
    const int64_t own = kSizes[group.rank()];
    // All of the others' for what is small, each rank's third of what is large.
    EXPECT_EQ(columns(group, [&] { group.all_reduce(rows(3)); }), std::pair(128L, 2 * 96L));
    const int64_t large = 3 * 64 * 1024;
    EXPECT_EQ(columns(group, [&] { group.all_reduce(at::ones({large}, at::kByte)); }),
              std::pair(4 * large / 3, 4 * large / 3));
    EXPECT_EQ(columns(group, [&] { group.all_gather(rows(own), 0, kSizes); }),
              std::pair(32 * (5 - own), 32 * (5 - own)));
    EXPECT_EQ(columns(group, [&] { group.reduce_scatter(rows(5), 0, kSizes); }),
              std::pair(2 * 32 * own, 2 * 32 * own));
    Tensor sent = rows(1);
    const int64_t came = group.rank() == 1 ? 0 : 32;
    EXPECT_EQ(columns(group, [&] { group.broadcast(sent, 1); }), std::pair(came, came));
  });
}

TEST(Moved, Gloo) {
  on_transport(3, Transport::gloo, [](Group& group) {
    const int64_t own = kSizes[group.rank()];
    EXPECT_EQ(columns(group, [&] { group.all_reduce(rows(3)); }), std::pair(128L, 128L));
    EXPECT_EQ(columns(group, [&] { group.all_gather(rows(own), 0, kSizes); }),
              std::pair(32 * (5 - own), 2 * 32 * 3L));  // padded
    EXPECT_EQ(columns(group, [&] { group.reduce_scatter(rows(5), 0, kSizes); }),
              std::pair(2 * 32 * own, 2 * 32 * own));
  });
}

TEST(Moved, NothingWhereNothingMoves) {
  const auto meta = at::device(at::kMeta);
  const auto check = [&](Group& group) {
    group.all_reduce(at::empty({3}, meta));
    group.all_gather(at::empty({kSizes[group.rank()], 4}, meta), 0, kSizes);
    group.reduce_scatter(at::empty({5, 4}, meta), 0, kSizes);
    EXPECT_EQ(group.ledger().total().calls, 3);
    EXPECT_EQ(group.ledger().moved(), 0);
  };
  on_transport(3, Transport::gloo, check);
  check(*World::fake(0, 3).make_group("fake", {0, 1, 2}));
}

/// CPU tensors over a backend that is used as NCCL is: by one tensor for all ranks' parts, and with
/// no Work for a caller that said that it would wait.
class LikeNccl final : public c10d::Backend {
 public:
  LikeNccl(int rank, int size, c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(rank, size), inner_(std::move(inner)) {}
  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    return work_for_caller(inner_->_allgather_base(output, input, options), options.asyncOp);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return work_for_caller(inner_->_reduce_scatter_base(output, input, options), options.asyncOp);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_rows,
                                               std::vector<int64_t>& input_rows,
                                               const c10d::AllToAllOptions& options) override {
    return work_for_caller(inner_->alltoall_base(output, input, output_rows, input_rows, options),
                           options.asyncOp);
  }

 private:
  static c10::intrusive_ptr<c10d::Work> work_for_caller(c10::intrusive_ptr<c10d::Work> work,
                                                        bool asynchronous) {
    if (asynchronous) return work;
    work->wait();
    return nullptr;
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
};

TEST(Moved, ByOneTensorForAllPartsAsOverNccl) {
  constexpr int kRanks = 3;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto errors = test::on_threads(kRanks, [&](int rank) {
    auto process_group = c10::make_intrusive<CountedProcessGroup>(
        c10::make_intrusive<c10d::PrefixStore>("pg", store), rank, std::vector<int>{0, 1, 2},
        kDefaultTimeout);
    process_group->setBackend(
        c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
        c10::make_intrusive<LikeNccl>(
            rank, kRanks,
            make_shared_memory_backend(c10::make_intrusive<c10d::PrefixStore>("shm", store), rank,
                                       kRanks, test::shm_options("like nccl"))));
    process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    Group group("all", {0, 1, 2}, rank, process_group);
    test::expect_moves_uneven_parts(group);
    const int64_t own = kSizes[rank];
    EXPECT_EQ(columns(group, [&] { group.all_gather(rows(own), 0, kSizes); }),
              std::pair(32 * (5 - own), 2 * 32 * 3L));
    EXPECT_EQ(columns(group, [&] { group.reduce_scatter(rows(5), 0, kSizes); }),
              std::pair(2 * 32 * own, 2 * 32 * 3L));
  });
  EXPECT_THAT(errors, ::testing::Each(::testing::IsEmpty()));
}

}  // namespace
}  // namespace oslo
