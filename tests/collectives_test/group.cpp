// Plain collectives of a group, with uneven and empty parts, and ranks that fail.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/grid/mpu.h"
#include "mpu/group/rank_check.h"
#include "tests/support/error_of.h"
#include "tests/support/tensor_ranks.h"
#include "tests/support/transport_ranks.h"

namespace oslo {
namespace {

using at::Tensor;
using test::error_of;
using test::on_ranks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Group, GathersAndScattersUnevenParts) {
  on_ranks(4, [](const MPU& mpu) {
    Group& group = *mpu.tensor_group();
    const int rank = group.rank();
    const std::vector<std::vector<int64_t>> cases = {
        {2, 2, 2, 2}, {3, 3, 2, 2}, {0, 5, 0, 1}, {0, 0, 0, 2}, {1, 0, 0, 0}};
    for (const auto& sizes : cases) {
      int64_t total = 0, start = 0;
      for (int r = 0; r < 4; ++r) {
        if (r < rank) start += sizes[r];
        total += sizes[r];
      }
      for (const int64_t dim : {int64_t{0}, int64_t{1}, int64_t{-1}}) {
        auto shape = std::vector<int64_t>{3, 3, 3};
        shape[dim < 0 ? dim + 3 : dim] = total;
        const Tensor whole = at::arange(9 * total, at::kDouble).view(shape);
        const Tensor part = whole.narrow(dim, start, sizes[rank]);  // not contiguous
        EXPECT_TRUE(at::equal(group.all_gather(part, dim, sizes), whole));
        const Tensor mine = whole * (rank + 1);
        EXPECT_TRUE(at::equal(group.reduce_scatter(mine, dim, sizes), part * 10));
        EXPECT_TRUE(at::equal(mine, whole * (rank + 1)));  // untouched
      }
    }
    const std::vector<int64_t> nothing = {0, 0, 0, 0};
    EXPECT_EQ(group.all_gather(at::empty({0, 3}), 0, nothing).sizes(), at::IntArrayRef({0, 3}));
  });
}

TEST(Group, ReducesBroadcastsAndExchanges) {
  on_ranks(3, [](const MPU& mpu) {
    Group& group = *mpu.tensor_group();
    const int rank = group.rank();
    const Tensor columns = at::arange(6, at::kDouble).view({2, 3}).t() * rank;  // not contiguous
    EXPECT_TRUE(
        at::equal(group.all_reduce(columns), at::arange(6, at::kDouble).view({2, 3}).t() * 3));
    EXPECT_EQ(group.all_reduce(at::full({2}, rank), oslo::Reduction::max)[0].item<int>(), 2);
    EXPECT_EQ(group.all_reduce(at::full({2}, rank), oslo::Reduction::min)[0].item<int>(), 0);
    EXPECT_EQ(group.all_reduce(at::empty({0})).numel(), 0);
    group.ledger().clear();
    Tensor sent = at::full({5}, rank, at::kLong);
    group.broadcast(sent, 1);
    EXPECT_TRUE(at::equal(sent, at::ones({5}, at::kLong)));
    EXPECT_EQ(group.ledger().total("broadcast"),
              rank == 1 ? (Traffic{1, 0, 0}) : (Traffic{1, 5, 40}));
    EXPECT_EQ(group.exchange(100 + rank), (std::vector<int64_t>{100, 101, 102}));
  });
}

// What autograd hands to a collective need not have memory of its own: zeros without any (the
// gradient of sgn), conjugates, negatives, transposes.
TEST(Group, TakesTensorsThatAreNotTheirMemory) {
  for (const Transport transport : {Transport::automatic, Transport::gloo}) {
    test::on_transport(3, transport, [](Group& group) {
      const std::vector<int64_t> sizes = {2, 0, 3};
      const int rank = group.rank();
      const Tensor numbers = at::complex(at::arange(15, at::kDouble), at::ones({15}, at::kDouble));
      const Tensor conjugate = (numbers.view({3, 5}) * (rank + 1)).conj();
      const std::vector<Tensor> all = {at::_efficientzerotensor({5, 3}, at::kDouble),
                                       at::_efficientzerotensor({5, 3}, at::kComplexDouble),
                                       conjugate.t(), at::imag(conjugate).t(),
                                       at::real(conjugate).t()};
      EXPECT_TRUE(all[0]._is_zerotensor() && all[2].is_conj() && all[3].is_neg());
      for (const Tensor& tensor : all) {
        const Tensor real = tensor.clone(at::MemoryFormat::Contiguous).resolve_conj().resolve_neg();
        const auto part = [&](const Tensor& t) { return t.narrow(0, 0, sizes[rank]); };
        EXPECT_TRUE(at::equal(group.all_reduce(tensor), group.all_reduce(real.clone())));
        EXPECT_TRUE(
            at::equal(group.start_all_reduce(tensor).wait(), group.all_reduce(real.clone())));
        EXPECT_TRUE(at::equal(group.all_gather(part(tensor), 0, sizes),
                              group.all_gather(part(real), 0, sizes)));
        EXPECT_TRUE(at::equal(group.reduce_scatter(tensor, 0, sizes),
                              group.reduce_scatter(real, 0, sizes)));
        if (rank == 0) group.send(tensor, 2);
        if (rank == 2) {
          EXPECT_EQ(group.receive(0)[0].sizes(), tensor.sizes());
        }
        EXPECT_EQ(content_digest(tensor), content_digest(real));
      }
    });
  }
}

TEST(Group, PartsThatDoNotFitTheLayoutAreRefused) {
  on_ranks(2, [](const MPU& mpu) {
    Group& group = *mpu.tensor_group();
    const std::vector<int64_t> sizes = {2, 2}, three = {2, 2, 2};
    EXPECT_THAT(error_of([&] { group.all_gather(at::ones({3}), 0, sizes); }),
                HasSubstr("this rank's part has 3"));
    EXPECT_THAT(error_of([&] { group.all_gather(at::ones({2}), 0, three); }),
                HasSubstr("the layout says [2, 2, 2]"));
    EXPECT_THAT(error_of([&] { group.reduce_scatter(at::ones({5}), 0, sizes); }),
                HasSubstr("do not add up"));
    EXPECT_EQ(group.ledger().total(), Traffic());
  });
}

TEST(Group, MetaTensorsMoveNothingButCount) {
  on_ranks(2, [](const MPU& mpu) {
    Group& group = *mpu.tensor_group();
    if (group.rank() == 1) return;  // nobody is waited for
    const std::vector<int64_t> sizes = {3, 2};
    const auto meta = at::TensorOptions().device(at::kMeta);
    const Tensor whole = group.all_gather(at::empty({3, 4}, meta), 0, sizes);
    EXPECT_TRUE(whole.is_meta());
    EXPECT_EQ(whole.sizes(), at::IntArrayRef({5, 4}));
    EXPECT_EQ(group.reduce_scatter(whole, 0, sizes).sizes(), at::IntArrayRef({3, 4}));
    EXPECT_TRUE(group.all_reduce(whole).is_meta());
    EXPECT_EQ(group.ledger().total(), (Traffic{3, 8 + 12 + 20, 4 * (8 + 12 + 20)}));
  });
}

TEST(Failure, ARankThatThrowsWakesTheOthersWithAClearError) {
  std::array<std::string, 3> seen;
  const std::string error = error_of([&] {
    on_ranks(3, [&](const MPU& mpu) {
      const int rank = mpu.get_tensor_parallel_rank();
      mpu.reduce(at::ones({4}));
      if (rank == 1) fail("the data of rank 1 is broken");
      seen[rank] = error_of([&] { mpu.reduce(at::ones({4})); });
      fail_as(ErrorKind::peer, seen[rank]);  // which may be told before the cause
    });
  });
  // Far below the two minutes after which a group gives up by itself: it would say so.
  EXPECT_THAT(error, AllOf(HasSubstr("rank 1"), HasSubstr("the data of rank 1 is broken")));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(seen[rank], AllOf(HasSubstr("all_reduce over group tensor (ranks 0"),
                                  HasSubstr("another rank has ended"), Not(HasSubstr("imed out"))));
  }
}

/// Its groups live on: nobody else would tell.
TEST(Failure, ARankThatCaughtItsErrorTellsTheOthersByAbortingItsGroups) {
  std::array<std::string, 2> seen;
  on_ranks(2, [&](const MPU& mpu) {
    const int rank = mpu.get_tensor_parallel_rank();
    mpu.reduce(at::ones({4}));
    try {
      if (rank == 1) fail("out of memory");
    } catch (const Error&) {
      for (const auto& group : mpu.groups()) group->process_group()->abort();
    }
    seen[rank] = error_of([&] { mpu.reduce(at::ones({4})); });
  });
  // The first of them that others are in: of both ranks, as the tensor group is.
  EXPECT_THAT(seen, Each(AllOf(HasSubstr("all_reduce over group tensor (ranks 0"),
                               EndsWith("rank 1 has aborted group model"))));
}

/// Waits, where it goes, until a thread has ended.
struct WaitsFor {
  std::future<void> end;
  ~WaitsFor() { end.wait(); }
};

TEST(Failure, TheCauseIsToldAlthoughItsConsequenceCameFirst) {
  std::promise<void> others_end;
  const std::string error = error_of([&] {
    run_as_threads(2, [&](World world) {
      std::optional<WaitsFor> last;  // after the groups of this rank have gone and woken the other
      if (world.rank() == 1) {
        last.emplace(others_end.get_future());
      } else {
        others_end.set_value_at_thread_exit();  // its error has been handed in by then
      }
      const MPU mpu(world, MpuOptions().tensor_parallel_size(2));
      mpu.reduce(at::ones({4}));
      if (world.rank() == 1) fail("the data of rank 1 is broken");
      mpu.reduce(at::ones({4}));
    });
  });
  EXPECT_EQ(error, "rank 1: the data of rank 1 is broken");
}

TEST(Failure, ErrorsOfLibTorchLoseTheirStackTrace) {
  const std::string error =
      error_of([] { run_as_threads(1, [](World) { at::ones({2}).view({3}); }); });
  EXPECT_THAT(error, AllOf(HasSubstr("rank 0: "), HasSubstr("invalid for input of size 2"),
                           Not(HasSubstr("frame #"))));
}

}  // namespace
}  // namespace oslo
