// What the differentiable collectives move, forward and backward, as the ledger counts it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <utility>
#include <vector>

#include "mpu/collectives/collectives.h"
#include "mpu/grid/mpu.h"
#include "tests/support/tensor_ranks.h"

namespace oslo {
namespace {

using at::Tensor;
using test::on_ranks;

TEST(Counts, ConjugatePairs) {
  on_ranks(3, [](const MPU& mpu) {
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
    EXPECT_EQ(
        counted(
            [&](const Tensor& t) { return reduce_and_scatter(t, mpu.tensor_group(), 1, sizes); },
            at::ones({4, 5}, at::kDouble)),
        std::pair(Traffic{1, scattered, 8 * scattered}, Traffic{1, gathered, 8 * gathered}));
  });
}

TEST(Counts, ConsumersOfOneValueShareItsReduction) {
  on_ranks(2, [](const MPU& mpu) {
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

TEST(Counts, ConsumersOfOneValueShareWhatWasGatheredForThem) {
  on_ranks(2, [](const MPU& mpu) {
    Group& group = *mpu.tensor_group();
    const std::vector<int64_t> sizes = {2, 3};
    Tensor x = at::ones({4, sizes[group.rank()]}, at::kDouble).set_requires_grad(true);
    const auto gather = [&](const Tensor& t) {
      return gather_and_copy(t, mpu.tensor_group(), 1, sizes);
    };
    const auto calls = [&](const char* operation) { return group.ledger().total(operation).calls; };
    {
      const Tensor a = gather(x), b = gather(x);
      EXPECT_TRUE(a.is_alias_of(b));
      EXPECT_EQ(calls("all_gather"), 1);
      (a * 2 + b * a).sum().backward();
      EXPECT_EQ(calls("reduce_scatter"), 1);
      EXPECT_TRUE(at::allclose(x.grad(), at::full_like(x, 2 * (2 + 2))));
    }
    group.ledger().clear();
    Tensor twice;
    for (int i = 0; i < 2; ++i) {  // nobody holds what was gathered: the node alone is shared
      const Tensor sum = gather(x).sum();
      twice = i == 0 ? sum : twice + sum;
    }
    EXPECT_EQ(calls("all_gather"), 2);
    twice.backward();
    EXPECT_EQ(calls("reduce_scatter"), 1);
    group.ledger().clear();
    const Tensor y = x * 1, before = gather(y);
    y.add_(1);
    const Tensor after = gather(y);
    EXPECT_TRUE(at::allclose(after, before + 1));  // written since
    const at::NoGradGuard none;
    const Tensor c = gather(x), d = gather(x);
    EXPECT_FALSE(c.is_alias_of(d));
    EXPECT_EQ(calls("all_gather"), 4);
  });
}

TEST(Counts, NamedByTheRuleThatAsked) {
  on_ranks(2, [](const MPU& mpu) {
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
  on_ranks(2, [](const MPU& mpu) {
    const Tensor plain = at::ones({4});
    EXPECT_TRUE(mpu.broadcast(plain).is_same(plain));
    EXPECT_FALSE(mpu.reduce(plain).requires_grad());
    const at::NoGradGuard no_grad;
    const Tensor x = at::ones({4}).set_requires_grad(true);
    EXPECT_FALSE(mpu.gather(x).requires_grad());
  });
}

}  // namespace
}  // namespace oslo
