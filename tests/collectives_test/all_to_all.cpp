// The all-to-all: parts along one dimension become parts along another, or other parts along the
// same one; what moves, its gradient and the gradient's.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>
#include <vector>

#include "mpu/collectives/collectives.h"
#include "mpu/grid/mpu.h"
#include "tests/support/error_of.h"
#include "tests/support/tensor_ranks.h"
#include "tests/support/transport_ranks.h"
#include "tests/support/uneven_parts.h"

namespace oslo {
namespace {

using at::Tensor;
using test::error_of;
using test::on_ranks;
using test::on_transport;
using ::testing::HasSubstr;

using Sizes = std::vector<int64_t>;

/// [7 positions, 3, 5 heads]: other numbers everywhere.
Tensor whole_value() {
  return at::arange(7 * 3 * 5, at::kDouble).view({7, 3, 5});
}

Tensor part_of(const Tensor& whole, int64_t dim, const Sizes& sizes, int rank) {
  const int64_t start = std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
  return whole.narrow(dim, start, sizes[rank]);
}

const Sizes kPositions{3, 2, 2}, kHeads{2, 2, 1}, kOtherPositions{0, 6, 1};

/// From kPositions to kOtherPositions: what each rank sends to each.
const std::vector<Sizes> kSent{{0, 3, 0}, {0, 2, 0}, {0, 1, 1}};

Sizes received_by(int rank) {
  return {kSent[0][rank], kSent[1][rank], kSent[2][rank]};
}

class AllToAll : public ::testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(Over, AllToAll,
                         ::testing::Values(Transport::shared_memory, Transport::gloo),
                         [](const auto& info) { return to_string(info.param); });

TEST_P(AllToAll, PartsAlongOneDimensionBecomePartsAlongAnother) {
  on_transport(3, GetParam(), [](Group& group) {
    const int rank = group.rank();
    test::expect_moves_uneven_parts(group);
    for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kInt,
                            at::kByte, at::kBool}) {
      const Tensor whole = whole_value().remainder(100).to(type);
      const Tensor positions = part_of(whole, 0, kPositions, rank);
      const Tensor heads = part_of(whole, 2, kHeads, rank);
      EXPECT_TRUE(at::equal(group.all_to_all(positions, {-1, kHeads}, {0, kPositions}), heads));
      EXPECT_TRUE(at::equal(group.all_to_all(heads, {-3, kPositions}, {2, kHeads}), positions));
      EXPECT_TRUE(at::equal(group.all_to_all(positions, {0, kSent[rank]}, {0, received_by(rank)}),
                            part_of(whole, 0, kOtherPositions, rank)));
    }
  });
}

TEST_P(AllToAll, StartedAndFinishedLaterFromItsOwnMemory) {
  on_transport(3, GetParam(), [](Group& group) {
    const int rank = group.rank();
    Tensor positions = part_of(whole_value(), 0, kPositions, rank).clone();
    Pending first = group.start_all_to_all(positions, {2, kHeads}, {0, kPositions});
    positions.zero_();  // what was sent is a copy
    Pending second = group.start_all_to_all(positions, {2, kHeads}, {0, kPositions});
    EXPECT_EQ(second.wait().count_nonzero().item<int64_t>(), 0);
    EXPECT_TRUE(at::equal(first.wait(), part_of(whole_value(), 2, kHeads, rank)));
  });
}

TEST_P(AllToAll, CountsWhatComesFromOthers) {
  on_transport(3, GetParam(), [](Group& group) {
    const int rank = group.rank();
    const Tensor positions = part_of(whole_value(), 0, kPositions, rank);
    group.all_to_all(positions, {2, kHeads}, {0, kPositions});
    const int64_t elements = (7 - kPositions[rank]) * 3 * kHeads[rank];
    EXPECT_EQ(group.ledger().total("all_to_all"), (Traffic{1, elements, 8 * elements}));
    EXPECT_EQ(group.ledger().moved(), 8 * elements);
    group.ledger().clear();
    group.all_to_all(positions, {0, kSent[rank]}, {0, received_by(rank)});
    const int64_t rows = Sizes{0, 4, 0}[rank];  // rank 1 gets all but its two, rank 2 has its one
    EXPECT_EQ(group.ledger().total("all_to_all"), (Traffic{1, rows * 15, 8 * rows * 15}));
  });
}

TEST(AllToAllAlone, ShapesOnlyAndASingleRank) {
  on_ranks(3, [](const MPU& mpu) {
    Group& group = *mpu.tensor_group();
    if (group.rank() != 1) return;  // nobody is waited for
    const Tensor shape = at::empty({2, 3, 5}, at::device(at::kMeta));
    const Tensor heads = group.all_to_all(shape, {2, kHeads}, {0, kPositions});
    EXPECT_TRUE(heads.is_meta());
    EXPECT_EQ(heads.sizes(), at::IntArrayRef({7, 3, 2}));
    EXPECT_EQ(group.ledger().total(), (Traffic{1, 5 * 3 * 2, 4 * 5 * 3 * 2}));
    EXPECT_EQ(group.ledger().moved(), 0);
  });
  on_ranks(1, [](const MPU& mpu) {
    const Tensor x = at::ones({3, 2}).set_requires_grad(true);
    EXPECT_TRUE(all_to_all(x, mpu.tensor_group(), {1, Sizes{2}}, {0, Sizes{3}}).is_same(x));
  });
}

TEST(AllToAllAlone, PartsThatDoNotFitAreRefused) {
  on_ranks(2, [](const MPU& mpu) {
    Group& group = *mpu.tensor_group();
    const Sizes rows{2, 2}, columns{1, 2}, three{1, 1, 1}, many{3, 3};
    const Tensor x = at::ones({2, 3});
    const auto error = [&](const PartsAlong& split, const PartsAlong& join) {
      return error_of([&] { group.all_to_all(x, split, join); });
    };
    EXPECT_THAT(error({1, columns}, {0, many}),
                HasSubstr("of shape [2, 3], pieces of [1, 2] along dimension 1 cannot be sent, and "
                          "pieces of [3, 3] along dimension 0 received by rank"));
    EXPECT_THAT(error({1, rows}, {0, rows}), HasSubstr("pieces of [2, 2] along dimension 1"));
    EXPECT_THAT(error({1, three}, {0, rows}), HasSubstr("pieces of [1, 1, 1]"));
    EXPECT_THAT(error({1, columns}, {1, many}), HasSubstr("pieces of [3, 3] along dimension 1"));
    EXPECT_EQ(group.ledger().total(), Traffic());
  });
}

TEST(AllToAllAlone, GradientsAndTheirsComeBackTheSameWay) {
  on_ranks(3, [](const MPU& mpu) {
    const int rank = mpu.get_tensor_parallel_rank();
    const auto& group = mpu.tensor_group();
    const auto value = [](const Tensor& w, const Tensor& x) { return (w * x.pow(3)).sum(); };
    const Tensor whole = at::sin(whole_value()).set_requires_grad(true);
    const Tensor weight = at::cos(whole_value());
    const Tensor expected =
        torch::autograd::grad({value(weight, whole)}, {whole}, {}, true, true)[0];
    const Tensor second = torch::autograd::grad({expected.pow(2).sum()}, {whole})[0];
    const auto check = [&](const PartsAlong& split, const PartsAlong& join, const Tensor& w) {
      const Tensor part =
          part_of(whole.detach(), 0, kPositions, rank).clone().set_requires_grad(true);
      group->ledger().clear();
      const Tensor moved = all_to_all(part, group, split, join);
      EXPECT_EQ(moved.grad_fn()->name(), "OsloAllToAllBackward");
      const Tensor gradient =
          torch::autograd::grad({value(w, moved)}, {part}, {},
                                /*retain_graph=*/true, /*create_graph=*/true)[0];
      EXPECT_TRUE(at::allclose(gradient, part_of(expected, 0, kPositions, rank)));
      EXPECT_EQ(group->ledger().total("all_to_all").calls, 2);
      const Tensor again = torch::autograd::grad({gradient.pow(2).sum()}, {part})[0];
      EXPECT_TRUE(at::allclose(again, part_of(second, 0, kPositions, rank)));
    };
    check({2, kHeads}, {0, kPositions}, part_of(weight, 2, kHeads, rank));
    const Sizes received = received_by(rank);
    check({0, kSent[rank]}, {0, received}, part_of(weight, 0, kOtherPositions, rank));
  });
}

TEST(AllToAllAlone, ADryRunForeseesTheWayBack) {
  on_ranks(3, [](const MPU& mpu) {
    const auto& group = mpu.tensor_group();
    group->foresee_backward();
    const Tensor shape =
        at::empty({kPositions[group->rank()], 3, 5}, at::device(at::kMeta)).set_requires_grad(true);
    all_to_all(shape, group, {2, kHeads}, {0, kPositions});
    const int64_t own = kPositions[group->rank()], heads = kHeads[group->rank()];
    EXPECT_EQ(group->ledger().total("all_to_all").elements,
              (7 - own) * 3 * heads + own * 3 * (5 - heads));
  });
}

}  // namespace
}  // namespace oslo
