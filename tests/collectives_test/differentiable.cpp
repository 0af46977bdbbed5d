// Differentiable collectives: values, and gradients against finite differences (acceptance case
// T15), with uneven and empty parts.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <utility>
#include <vector>

#include "mpu/collectives/collectives.h"
#include "mpu/grid/mpu.h"
#include "tests/support/error_of.h"
#include "tests/support/tensor_ranks.h"

namespace oslo {
namespace {

using at::Tensor;
using test::error_of;
using test::on_ranks;
using ::testing::HasSubstr;

/// rank * 8 + j.
Tensor vector_of(int rank, int64_t size = 8) {
  return at::arange(size, at::kDouble) + 8.0 * rank;
}

TEST(Differentiable, ValuesOnVectorsOfRankTimesEightPlusJ) {  // T15
  on_ranks(4, [](const MPU& mpu) {
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
  on_ranks(4, [](const MPU& mpu) {
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
  on_ranks(3, [](const MPU& mpu) {
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
  on_ranks(2, [](const MPU& mpu) {
    const Tensor number = at::scalar_tensor(1.0);
    EXPECT_THAT(error_of([&] { mpu.scatter(number); }), HasSubstr("this tensor has none"));
    EXPECT_THAT(error_of([&] { mpu.gather(number); }), HasSubstr("this tensor has none"));
    EXPECT_EQ(mpu.reduce(number).item<double>(), 2.0);
  });
}

using Loss = std::function<Tensor(const Tensor&)>;

constexpr double kStep = 1e-6;

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

TEST(Gradients, BroadcastOfAReplicatedInput) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor weights = weights_of(mpu.get_tensor_parallel_rank(), {5});
    expect_gradient_of_whole(
        [&](const Tensor& x) { return mpu.reduce((weights * mpu.broadcast(x).pow(2)).sum()); },
        weights_of(9, {5}));
  });
}

TEST(Gradients, ScatterOfAReplicatedInputOfOddSize) {
  on_ranks(3, [](const MPU& mpu) {
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
  on_ranks(3, [](const MPU& mpu) {
    const Tensor weights = weights_of(9, {4});
    expect_gradient_of_parts(
        [&](const Tensor& x) { return (weights * mpu.reduce(x).pow(2)).sum(); },
        weights_of(mpu.get_tensor_parallel_rank(), {4}), *mpu.tensor_group());
  });
}

TEST(Gradients, GatherOfUnevenParts) {
  on_ranks(3, [](const MPU& mpu) {
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
  on_ranks(3, [](const MPU& mpu) {
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

TEST(Gradients, ReduceAndScatterOfPartialSums) {
  on_ranks(3, [](const MPU& mpu) {
    const int rank = mpu.get_tensor_parallel_rank();
    const std::vector<int64_t> sizes = {2, 0, 3};
    for (const int64_t dim : {int64_t{1}, int64_t{-2}}) {  // the same, counted from either end
      expect_gradient_of_parts(
          [&](const Tensor& x) {
            const Tensor part = reduce_and_scatter(x, mpu.tensor_group(), dim, sizes);
            EXPECT_EQ(part.sizes(), at::IntArrayRef({2, sizes[rank], 1}));
            return mpu.reduce((weights_of(rank, part.sizes()) * part.pow(2)).sum());
          },
          weights_of(rank, {2, 5, 1}), *mpu.tensor_group());
    }
  });
}

TEST(Gradients, OfGradientsThroughReduceAndScatterAndItsConjugate) {
  on_ranks(3, [](const MPU& mpu) {
    const int rank = mpu.get_tensor_parallel_rank();
    const auto& group = mpu.tensor_group();
    const std::vector<int64_t> sizes = {2, 0, 3};
    // The squared length of a gradient: what a gradient penalty differentiates.
    const auto penalty = [&](const Loss& loss, const Tensor& input) {
      const Tensor x = input.requires_grad() ? input : input.clone().set_requires_grad(true);
      const Tensor gradient = torch::autograd::grad({loss(x)}, {x}, {}, true, true)[0];
      return mpu.reduce(gradient.pow(2).sum());
    };
    const Loss scattered = [&](const Tensor& x) {
      const Tensor part = reduce_and_scatter(x, group, 0, sizes);
      return mpu.reduce((weights_of(rank, part.sizes()) * part.pow(3)).sum());
    };
    const Loss gathered = [&](const Tensor& x) {
      const Tensor whole = gather_and_copy(x, group, 0, sizes);
      return mpu.reduce((weights_of(rank, whole.sizes()) * whole.pow(3)).sum());
    };
    expect_gradient_of_parts([&](const Tensor& x) { return penalty(scattered, x); },
                             weights_of(rank, {5, 1}), *group);
    expect_gradient_of_parts([&](const Tensor& x) { return penalty(gathered, x); },
                             weights_of(rank, {sizes[rank], 1}), *group);
  });
}

}  // namespace
}  // namespace oslo
