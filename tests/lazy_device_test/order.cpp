// The order between the compute stream and the staged transport, both ways, on a device that does
// nothing before it must.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "mpu/group/group.h"
#include "mpu/transport/backends/staged_backend.h"
#include "mpu/transport/backends/staging.h"
#include "mpu/transport/counted_process_group.h"
#include "tests/lazy_device_test/late_tensors.h"
#include "tests/lazy_device_test/lazy_device.h"
#include "tests/support/shared_memory_group.h"

namespace oslo {
namespace {

using at::Tensor;
using test::kLazy;
using test::late;
using test::seen;

constexpr int kRanks = 2;

/// `body` on each rank, a thread with a compute stream of its own.
void on_device(const std::function<void(Group&, StagedBackend&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto made = [&](const std::string& name, int rank) {
    return make_shared_memory_backend(c10::make_intrusive<c10d::PrefixStore>(name, store), rank,
                                      kRanks, test::shm_options(name));
  };
  const auto errors = test::on_threads(kRanks, [&](int rank) {
    const c10::StreamGuard stream(
        c10::impl::VirtualGuardImpl(c10::kPrivateUse1).getStreamFromGlobalPool(kLazy));
    auto process_group = c10::make_intrusive<CountedProcessGroup>(
        c10::make_intrusive<c10d::PrefixStore>("pg", store), rank, std::vector<int>{0, 1},
        std::chrono::minutes(1));
    using Type = c10d::ProcessGroup::BackendType;
    auto staged = c10::make_intrusive<StagedBackend>(rank, kRanks, made("staged", rank), 64);
    process_group->setBackend(c10::kCPU, Type::CUSTOM, made("cpu", rank));
    process_group->setBackend(c10::kPrivateUse1, Type::NCCL, staged);
    process_group->setDefaultBackend(Type::CUSTOM);
    Group group("all", {0, 1}, rank, process_group);
    body(group, *staged);
  });
  EXPECT_THAT(errors, testing::Each(testing::IsEmpty()));
}

TEST(LazyDevice, DoesNothingBeforeTheHostWaits) {
  const size_t before = test::undone_copies();
  const Tensor tensor = late(at::ones({3}));
  EXPECT_EQ(test::undone_copies(), before + 1);
  EXPECT_TRUE(at::equal(seen(tensor), at::ones({3})));
  EXPECT_EQ(test::undone_copies(), before);
}

TEST(Order, ACollectiveReadsAfterTheComputeStreamAndIsReadAfterIt) {
  on_device([](Group& group, StagedBackend&) {
    for (const int64_t size : {1, 8, 100}) {
      const Tensor numbers = at::arange(size, at::kDouble);
      // All-reduce in chunks.
      Tensor tensor = late(numbers + group.rank());
      EXPECT_TRUE(at::equal(seen(group.all_reduce(tensor)), numbers * 2 + 1));
      EXPECT_GE(test::streams_told(tensor), 2u);  // out and in
      EXPECT_TRUE(
          at::equal(seen(group.all_gather(late(numbers * (group.rank() + 1)), 0, {size, size})),
                    at::cat({numbers, numbers * 2})));
      EXPECT_TRUE(at::equal(
          seen(group.reduce_scatter(late(at::cat({numbers, numbers + 1})), 0, {size, size})),
          (numbers + group.rank()) * 2));
      Tensor sent = late(numbers + 5 * group.rank());
      group.broadcast(sent, 1);
      EXPECT_TRUE(at::equal(seen(sent), numbers + 5));
    }
  });
}

TEST(Order, StartedOnesAreReadAfterTheirWait) {
  on_device([](Group& group, StagedBackend&) {
    const Tensor numbers = at::arange(50, at::kDouble);
    std::vector<Pending> started;
    for (int i = 0; i < 5; ++i) started.push_back(group.start_all_reduce(late(numbers + i)));
    for (int i = 4; i >= 0; --i) {
      EXPECT_TRUE(at::equal(seen(started[i].wait()), (numbers + i) * 2));
    }
  });
}

TEST(Order, WaitingIsTheStreamsNotTheHosts) {
  on_device([](Group& group, StagedBackend&) {
    const Tensor sum = group.all_reduce(late(at::ones({8}, at::kDouble)));
    group.exchange(0);                     // by the CPU's transport: the other rank has waited, too
    EXPECT_GE(test::undone_copies(), 1u);  // into the device: ordered, and not done
    group.exchange(0);
    EXPECT_TRUE(at::equal(seen(sum), at::full({8}, 2, at::kDouble)));
  });
}

TEST(Order, MessagesAreOrderedAsCollectivesAre) {
  on_device([](Group& group, StagedBackend& staged) {
    const Tensor numbers = at::arange(20, at::kLong);
    const int other = 1 - group.rank();
    std::vector<Tensor> coming{at::empty({20}, at::device(kLazy).dtype(at::kLong))};
    std::vector<Tensor> going{late(numbers + group.rank())};
    const auto received = staged.recv(coming, other, 3);
    const auto sent = staged.send(going, other, 3);
    received->wait();
    EXPECT_TRUE(at::equal(seen(coming[0]), numbers + other));
    sent->wait();
  });
}

TEST(Order, TensorsComeInOneOrderAndAreTakenByTheirTagsInAny) {
  on_device([](Group& group, StagedBackend&) {
    const int other = 1 - group.rank();
    const auto content = [](int rank, int tag) {
      return at::arange(20 * tag, at::kLong) + 100 * tag + 1000 * rank;
    };
    for (const int tag : {1, 2, 3}) {
      group.send({late(content(group.rank(), tag)), at::ones({2}), late(content(group.rank(), 4))},
                 other, tag);
    }
    for (const int tag : {3, 1, 2}) {
      const auto came = group.receive(other, tag);
      EXPECT_TRUE(at::equal(seen(came.at(0)), content(other, tag))) << tag;
      EXPECT_TRUE(at::equal(came.at(1), at::ones({2}))) << tag;
      EXPECT_TRUE(at::equal(seen(came.at(2)), content(other, 4))) << tag;
    }
  });
}

TEST(Order, AFuturesCallbackSeesTheResult) {
  on_device([](Group& group, StagedBackend& staged) {
    std::vector<Tensor> tensors{late(at::ones({30}))};
    const auto future = staged.allreduce(tensors, {})->getFuture();
    future->wait();  // DistributedDataParallel's way
    EXPECT_TRUE(at::equal(seen(future->value().toTensorVector()[0]), at::full({30}, 2.f)));
    group.exchange(0);
  });
}

TEST(Order, CopiesInLeaveEarlierReadersAlone) {
  // A result is copied into memory that the compute stream still reads.
  const c10::StreamGuard stream(
      c10::impl::VirtualGuardImpl(c10::kPrivateUse1).getStreamFromGlobalPool(kLazy));
  const Tensor tensor = late(at::ones({4}));
  const Tensor kept = at::empty({4}, at::device(kLazy));
  kept.copy_(tensor, /*non_blocking=*/true);
  const Staging staging(kLazy);
  const auto room = staging.room_for(tensor);
  room.host.fill_(7);
  staging.copy_in(room);
  const auto future = staging.future();
  staging.complete(*future, {tensor});
  {
    // Somebody else is first to need it.
    const c10::StreamGuard other(
        c10::impl::VirtualGuardImpl(c10::kPrivateUse1).getStreamFromGlobalPool(kLazy));
    future->wait();
    test::finish_current_stream();
  }
  EXPECT_TRUE(at::equal(seen(tensor), at::full({4}, 7.f)));
  EXPECT_TRUE(at::equal(seen(kept), at::ones({4})));
}

}  // namespace
}  // namespace oslo
