// Collectives, plain and differentiable: values, counts and gradients against finite differences
// (acceptance case T15), uneven and empty parts, and ranks that fail.
#include "mpu/collectives.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <functional>

#include "mpu/error.h"
#include "mpu/mpu.h"

namespace oslo {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Loss = std::function<Tensor(const Tensor&)>;

constexpr double kStep = 1e-6;

void on_tensor_ranks(int size, const std::function<void(const MPU&)>& body) {
  run_as_threads(size,
                 [&](World world) { body(MPU(world, MpuOptions().tensor_parallel_size(size))); });
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// rank * 8 + j.
Tensor vector_of(int rank, int64_t size = 8) {
  return at::arange(size, at::kDouble) + 8.0 * rank;
}

/// Other numbers on every rank.
Tensor weights_of(int rank, at::IntArrayRef sizes) {
  return at::sin(at::arange(c10::multiply_integers(sizes), at::kDouble) + 1.7 * rank).view(sizes);
}

Tensor gradient_of(const Loss& loss, const Tensor& at) {
  const Tensor x = at.detach().clone().set_requires_grad(true);
  loss(x).backward();
  return x.grad();
}

/// How `loss` (collective, the same on all ranks) changes with element `i` of this rank's `x`, when
/// those ranks change it that say so.
double slope(const Loss& loss, const Tensor& x, int64_t i, bool mine) {
  const auto shifted = [&](double by) {
    Tensor moved = x.detach().clone();
    if (mine) moved.view(-1)[i] += by;
    return loss(moved).item<double>();
  };
  const double up = shifted(kStep);
  return (up - shifted(-kStep)) / (2 * kStep);
}

/// `x` is one value that every rank holds: all move it at once.
void expect_gradient_of_whole(const Loss& loss, const Tensor& x) {
  const Tensor gradient = gradient_of(loss, x).view(-1);
  for (int64_t i = 0; i < x.numel(); ++i) {
    EXPECT_NEAR(gradient[i].item<double>(), slope(loss, x, i, true), 1e-7) << "element " << i;
  }
}

/// `x` is this rank's own: the ranks move theirs in turn.
void expect_gradient_of_parts(const Loss& loss, const Tensor& x, Group& group) {
  const Tensor gradient = gradient_of(loss, x).view(-1);
  const std::vector<int64_t> counts = group.exchange(x.numel());
  for (int rank = 0; rank < group.size(); ++rank) {
    for (int64_t i = 0; i < counts[rank]; ++i) {
      const bool mine = rank == group.rank();
      const double expected = slope(loss, x, i, mine);
      if (mine) {
        EXPECT_NEAR(gradient[i].item<double>(), expected, 1e-7) << "element " << i;
      }
    }
  }
}

// --- forward values ----------------------------------------------------------------------------

TEST(Differentiable, ValuesOnVectorsOfRankTimesEightPlusJ) {  // T15
  on_tensor_ranks(4, [](const MPU& mpu) {
    const int rank = mpu.get_tensor_parallel_rank();
    const Tensor x = vector_of(rank);
    EXPECT_TRUE(at::equal(mpu.broadcast(x), x));
    EXPECT_TRUE(at::equal(mpu.reduce(x), 4 * at::arange(8, at::kDouble) + 8 * (0 + 1 + 2 + 3)));
    EXPECT_TRUE(at::equal(x, vector_of(rank)));  // untouched
    EXPECT_TRUE(at::equal(mpu.scatter(x), x.slice(0, 2 * rank, 2 * rank + 2)));
    EXPECT_TRUE(at::equal(mpu.gather(x), at::arange(32, at::kDouble)));
  });
}

TEST(Differentiable, GradientsOnVectorsOfRankTimesEightPlusJ) {  // T15
  on_tensor_ranks(4, [](const MPU& mpu) {
    const int rank = mpu.get_tensor_parallel_rank();
    const auto backward = [&](const std::function<Tensor(const Tensor&)>& operation,
                              const Tensor& gradient) {
      const Tensor x = vector_of(rank).set_requires_grad(true);
      operation(x).backward(gradient);
      return x.grad();
    };
    const Tensor sum = 4 * at::arange(8, at::kDouble) + 48;
    EXPECT_TRUE(at::equal(
        backward([&](const Tensor& x) { return mpu.broadcast(x); }, vector_of(rank)), sum));
    EXPECT_TRUE(at::equal(backward([&](const Tensor& x) { return mpu.reduce(x); }, sum), sum));
    EXPECT_TRUE(
        at::equal(backward([&](const Tensor& x) { return mpu.scatter(x); }, vector_of(rank, 2)),
                  at::cat({vector_of(0, 2), vector_of(1, 2), vector_of(2, 2), vector_of(3, 2)})));
    EXPECT_TRUE(at::equal(
        backward([&](const Tensor& x) { return mpu.gather(x); }, at::arange(32, at::kDouble)),
        vector_of(rank)));
  });
}

TEST(Differentiable, OddSizesAndMoreRanksThanElements) {
  on_tensor_ranks(3, [](const MPU& mpu) {
    const int rank = mpu.get_tensor_parallel_rank();
    const std::vector<int64_t> sizes_of_seven = {3, 2, 2}, sizes_of_two = {1, 1, 0};
    for (const auto& [size, sizes] :
         {std::pair(int64_t{7}, sizes_of_seven), std::pair(int64_t{2}, sizes_of_two)}) {
      const Tensor x = at::arange(2 * size, at::kDouble).view({2, size});
      const Tensor part = mpu.scatter(x);
      EXPECT_EQ(part.sizes(), at::IntArrayRef({2, sizes[rank]}));
      EXPECT_TRUE(at::equal(mpu.gather(part), x));
    }
    // Ranks may bring different amounts, none at all too.
    const Tensor joined = mpu.gather(at::full({2, rank}, rank, at::kDouble));
    EXPECT_TRUE(at::equal(joined, at::tensor({1.0, 2.0, 2.0}).to(at::kDouble).expand({2, 3})));
  });
}

TEST(Differentiable, NumbersWithoutADimensionCannotBeCut) {
  on_tensor_ranks(2, [](const MPU& mpu) {
    const Tensor number = at::scalar_tensor(1.0);
    EXPECT_THAT(error_of([&] { mpu.scatter(number); }), HasSubstr("this tensor has none"));
    EXPECT_THAT(error_of([&] { mpu.gather(number); }), HasSubstr("this tensor has none"));
    EXPECT_EQ(mpu.reduce(number).item<double>(), 2.0);
  });
}

// --- gradients against finite differences ------------------------------------------------------

TEST(Gradients, BroadcastOfAReplicatedInput) {
  on_tensor_ranks(3, [](const MPU& mpu) {
    const Tensor weights = weights_of(mpu.get_tensor_parallel_rank(), {5});
    expect_gradient_of_whole(
        [&](const Tensor& x) { return mpu.reduce((weights * mpu.broadcast(x).pow(2)).sum()); },
        weights_of(9, {5}));
  });
}

TEST(Gradients, ScatterOfAReplicatedInputOfOddSize) {
  on_tensor_ranks(3, [](const MPU& mpu) {
    const int rank = mpu.get_tensor_parallel_rank();
    expect_gradient_of_whole(
        [&](const Tensor& x) {
          const Tensor part = mpu.scatter(x);
          return mpu.reduce((weights_of(rank, part.sizes()) * part.pow(3)).sum());
        },
        weights_of(9, {2, 7}));
  });
}

TEST(Gradients, ReduceOfPartialSums) {
  on_tensor_ranks(3, [](const MPU& mpu) {
    const Tensor weights = weights_of(9, {4});
    expect_gradient_of_parts(
        [&](const Tensor& x) { return (weights * mpu.reduce(x).pow(2)).sum(); },
        weights_of(mpu.get_tensor_parallel_rank(), {4}), *mpu.tensor_group());
  });
}

TEST(Gradients, GatherOfUnevenParts) {
  on_tensor_ranks(3, [](const MPU& mpu) {
    const int rank = mpu.get_tensor_parallel_rank();
    expect_gradient_of_parts(
        [&](const Tensor& x) {
          const Tensor whole = mpu.gather(x);
          return (weights_of(9, whole.sizes()) * whole.pow(2)).sum();
        },
        weights_of(rank, {2, rank}), *mpu.tensor_group());
  });
}

TEST(Gradients, GatherAndCopyWhereRanksUseTheWholeDifferently) {
  on_tensor_ranks(3, [](const MPU& mpu) {
    const int rank = mpu.get_tensor_parallel_rank();
    const std::vector<int64_t> sizes = {2, 0, 3};
    expect_gradient_of_parts(
        [&](const Tensor& x) {
          const Tensor whole = gather_and_copy(x, mpu.tensor_group(), 0, sizes);
          return mpu.reduce((weights_of(rank, whole.sizes()) * whole.pow(2)).sum());
        },
        weights_of(rank, {sizes[rank], 2}), *mpu.tensor_group());
  });
}

// --- what moves --------------------------------------------------------------------------------

TEST(Counts, ConjugatePairs) {
  on_tensor_ranks(3, [](const MPU& mpu) {
    Group& group = *mpu.tensor_group();
    const int rank = group.rank();
    const auto counted = [&](const std::function<Tensor(const Tensor&)>& operation,
                             const Tensor& input) {
      group.ledger().clear();
      const Tensor x = input.detach().clone().set_requires_grad(true);
      const Tensor y = operation(x);
      const auto forward = group.ledger().total();
      y.backward(at::ones_like(y));
      return std::pair(forward, group.ledger().total() - forward);
    };
    const Traffic none;
    const Traffic reduced{1, 28, 224};  // 2 x 2/3 x 21 doubles
    const Tensor x = at::ones({3, 7}, at::kDouble);
    EXPECT_EQ(counted([&](const Tensor& t) { return mpu.broadcast(t); }, x),
              std::pair(none, reduced));
    EXPECT_EQ(counted([&](const Tensor& t) { return mpu.reduce(t); }, x), std::pair(reduced, none));
    const int64_t others = rank == 0 ? 12 : 15;  // parts of 3, 2, 2 columns
    EXPECT_EQ(counted([&](const Tensor& t) { return mpu.scatter(t); }, x),
              std::pair(none, Traffic{1, others, 8 * others}));
    const std::vector<int64_t> sizes = {2, 0, 3};
    const Tensor part = at::ones({4, sizes[rank]}, at::kDouble);
    const int64_t gathered = 4 * (5 - sizes[rank]), scattered = 4 * sizes[rank] * 2;
    EXPECT_EQ(counted([&](const Tensor& t) { return gather_from(t, mpu.tensor_group(), 1, sizes); },
                      part),
              std::pair(Traffic{1, gathered, 8 * gathered}, none));
    EXPECT_EQ(
        counted([&](const Tensor& t) { return gather_and_copy(t, mpu.tensor_group(), 1, sizes); },
                part),
        std::pair(Traffic{1, gathered, 8 * gathered}, Traffic{1, scattered, 8 * scattered}));
  });
}

TEST(Counts, ConsumersOfOneValueShareItsReduction) {
  on_tensor_ranks(2, [](const MPU& mpu) {
    Ledger& ledger = mpu.tensor_group()->ledger();
    Tensor x = at::ones({4}).set_requires_grad(true);
    (mpu.broadcast(x) * 2 + mpu.broadcast(x) * 3).sum().backward();
    EXPECT_EQ(ledger.total("all_reduce").calls, 1);
    EXPECT_TRUE(at::equal(x.grad(), at::full({4}, 10.0)));

    // Changed in place between its consumers, it is another value.
    ledger.clear();
    x.mutable_grad() = Tensor();
    const Tensor y = x * 1;
    const Tensor first = mpu.broadcast(y) * 2;
    y.mul_(5);
    (first + mpu.broadcast(y)).sum().backward();
    EXPECT_EQ(ledger.total("all_reduce").calls, 2);
    EXPECT_TRUE(at::equal(x.grad(), at::full({4}, 2 * (2.0 + 5.0))));
  });
}

TEST(Counts, NamedByTheRuleThatAsked) {
  on_tensor_ranks(2, [](const MPU& mpu) {
    const Tensor x = at::ones({4}).set_requires_grad(true);
    Tensor y;
    {
      const RuleScope scope("a rule");
      y = mpu.broadcast(x);
    }
    mpu.reduce(at::ones({4}));
    y.sum().backward();
    const auto entries = mpu.tensor_group()->ledger().entries();
    ASSERT_EQ(entries.size(), 2U);
    EXPECT_EQ(entries[0].rule, "-");
    EXPECT_EQ(entries[1].rule, "a rule");  // in backward too
  });
}

TEST(Counts, NoGradientNoBackwardNode) {
  on_tensor_ranks(2, [](const MPU& mpu) {
    const Tensor plain = at::ones({4});
    EXPECT_TRUE(mpu.broadcast(plain).is_same(plain));
    EXPECT_FALSE(mpu.reduce(plain).requires_grad());
    const at::NoGradGuard no_grad;
    const Tensor x = at::ones({4}).set_requires_grad(true);
    EXPECT_FALSE(mpu.gather(x).requires_grad());
  });
}

// --- plain collectives -------------------------------------------------------------------------

TEST(Group, GathersAndScattersUnevenParts) {
  on_tensor_ranks(4, [](const MPU& mpu) {
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
  on_tensor_ranks(3, [](const MPU& mpu) {
    Group& group = *mpu.tensor_group();
    const int rank = group.rank();
    const Tensor columns = at::arange(6, at::kDouble).view({2, 3}).t() * rank;  // not contiguous
    EXPECT_TRUE(
        at::equal(group.all_reduce(columns), at::arange(6, at::kDouble).view({2, 3}).t() * 3));
    EXPECT_EQ(group.all_reduce(at::full({2}, rank), c10d::ReduceOp::MAX)[0].item<int>(), 2);
    EXPECT_EQ(group.all_reduce(at::full({2}, rank), c10d::ReduceOp::MIN)[0].item<int>(), 0);
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

TEST(Group, PartsThatDoNotFitTheLayoutAreRefused) {
  on_tensor_ranks(2, [](const MPU& mpu) {
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
  on_tensor_ranks(2, [](const MPU& mpu) {
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

// --- ranks that fail ---------------------------------------------------------------------------

TEST(Failure, ARankThatThrowsWakesTheOthersWithAClearError) {
  std::array<std::string, 3> seen;
  const std::string error = error_of([&] {
    on_tensor_ranks(3, [&](const MPU& mpu) {
      const int rank = mpu.get_tensor_parallel_rank();
      mpu.reduce(at::ones({4}));
      if (rank == 1) fail("the data of rank 1 is broken");
      seen[rank] = error_of([&] { mpu.reduce(at::ones({4})); });
      fail(seen[rank]);
    });
  });
  // Far below the two minutes after which a group gives up by itself: it would say so.
  EXPECT_THAT(error, AllOf(HasSubstr("rank 1"), HasSubstr("the data of rank 1 is broken")));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(seen[rank], AllOf(HasSubstr("all_reduce over group tensor (ranks 0"),
                                  HasSubstr("another rank has ended"), Not(HasSubstr("imed out"))));
  }
}

TEST(Failure, ErrorsOfLibTorchLoseTheirStackTrace) {
  const std::string error =
      error_of([] { run_as_threads(1, [](World) { at::ones({2}).view({3}); }); });
  EXPECT_THAT(error, AllOf(HasSubstr("rank 0: "), HasSubstr("invalid for input of size 2"),
                           Not(HasSubstr("frame #"))));
}

}  // namespace
}  // namespace oslo
