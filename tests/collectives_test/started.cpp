// Started collectives: the same results, counts and gradients as those that are waited for at once,
// and handles that are dropped.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "mpu/collectives/collectives.h"
#include "mpu/grid/mpu.h"
#include "tests/support/error_of.h"
#include "tests/support/tensor_ranks.h"
#include "tests/support/transport_ranks.h"

namespace oslo {
namespace {

using at::Tensor;
using test::error_of;
using test::on_ranks;
using test::on_transport;
using ::testing::HasSubstr;

class Started : public ::testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(Over, Started,
                         ::testing::Values(Transport::shared_memory, Transport::gloo),
                         [](const auto& info) { return to_string(info.param); });

/// Other numbers on every rank.
Tensor numbers(int rank, at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kDouble).view(sizes) * (rank + 1) + rank;
}

TEST_P(Started, GiveWhatWaitingAtOnceGives) {
  on_transport(3, GetParam(), [](Group& group) {
    const int rank = group.rank();
    const std::vector<int64_t> sizes{2, 0, 3}, even{2, 2, 2};
    const auto compare = [&](const std::function<Tensor()>& at_once,
                             const std::function<Pending()>& start) {
      group.ledger().clear();
      const Tensor expected = at_once();
      const auto counted = group.ledger().total();
      const int64_t moved = group.ledger().moved();
      Pending first = start(), second = start();
      // In another order than they were started in.
      EXPECT_TRUE(at::equal(second.wait(), expected));
      EXPECT_TRUE(at::equal(first.wait(), expected));
      EXPECT_EQ(group.ledger().total().calls, 3);
      EXPECT_EQ(group.ledger().total().bytes, 3 * counted.bytes);
      EXPECT_EQ(group.ledger().moved(), 3 * moved);
      EXPECT_THAT(error_of([&] { first.wait(); }), HasSubstr("gives its result once"));
    };
    for (const Reduction reduction : {Reduction::sum, Reduction::max, Reduction::min}) {
      compare(
          [&] {
            return group.all_reduce(numbers(rank, {5, 7}), reduction);
          },
          [&] {
            return group.start_all_reduce(numbers(rank, {5, 7}), reduction);
          });
    }
    for (const auto& parts : {sizes, even}) {
      const int64_t whole = parts[0] + parts[1] + parts[2];
      for (const int64_t dim : {int64_t{0}, int64_t{1}, int64_t{-1}}) {
        std::vector<int64_t> part_shape{4, 4, 4}, shape{4, 4, 4};
        part_shape[dim < 0 ? 2 : dim] = parts[rank];
        shape[dim < 0 ? 2 : dim] = whole;
        const Tensor part = numbers(rank, part_shape), all = numbers(rank, shape);
        compare([&] { return group.all_gather(part, dim, parts); },
                [&] { return group.start_all_gather(part, dim, parts); });
        compare([&] { return group.reduce_scatter(all, dim, parts); },
                [&] { return group.start_reduce_scatter(all, dim, parts); });
        EXPECT_TRUE(at::equal(all, numbers(rank, shape)));  // untouched
      }
    }
    const auto sent = [&] { return numbers(rank, {6}); };
    compare(
        [&] {
          Tensor tensor = sent();
          group.broadcast(tensor, 2);
          return tensor;
        },
        [&] { return group.start_broadcast(sent(), 2); });
  });
}

TEST_P(Started, ComplexAndHalfPrecisionPartsOfAnySize) {
  on_transport(3, GetParam(), [](Group& group) {
    const std::vector<int64_t> sizes{2, 1, 0};
    const Tensor whole = at::arange(6, at::kDouble).view({2, 3});
    const Tensor complex = at::complex(whole, whole + 1).conj();
    const int64_t start = group.rank() == 0 ? 0 : group.rank() == 1 ? 2 : 3;
    const auto part = [&](const Tensor& of) { return of.narrow(1, start, sizes[group.rank()]); };
    EXPECT_TRUE(at::equal(group.start_all_gather(part(complex), 1, sizes).wait(), complex));
    EXPECT_TRUE(at::equal(group.start_reduce_scatter(complex, 1, sizes).wait(), part(complex) * 3));
    const Tensor half = whole.to(at::kBFloat16);
    EXPECT_TRUE(at::equal(group.reduce_scatter(half, 1, sizes), part(half) * 3));
  });
}

TEST_P(Started, DroppedHandlesFinishFromTheirOwnMemory) {
  on_transport(3, GetParam(), [](Group& group) {
    const std::vector<int64_t> sizes{2000, 0, 3000};
    for (int i = 0; i < 30; ++i) {
      group.start_all_reduce(at::full({3000}, 1.0 + i));
      group.start_all_gather(at::full({sizes[group.rank()]}, 2.0), 0, sizes);
      group.start_reduce_scatter(at::full({5000}, 3.0), 0, sizes);
      at::full({5000}, -1.0);  // takes memory that is free too early
    }
    EXPECT_EQ(group.all_reduce(at::ones({1})).item<double>(), 3);
    std::optional<Pending> outlives(group.start_all_reduce(at::ones({100'000})));
    outlives.reset();
  });
}

TEST_P(Started, WhatIsWrittenToMeanwhileIsTold) {
  on_transport(2, GetParam(), [](Group& group) {
    const std::vector<int64_t> sizes{2, 3};
    Tensor whole = at::ones({5}), part = at::ones({sizes[group.rank()]});
    Pending scattered = group.start_reduce_scatter(whole, 0, sizes);
    Pending gathered = group.start_all_gather(part, 0, sizes);
    whole.add_(1);
    part.add_(1);
    EXPECT_THAT(error_of([&] { scattered.wait(); }),
                ::testing::AllOf(HasSubstr("reduce_scatter over group all"),
                                 HasSubstr("its operand was written to")));
    EXPECT_THAT(error_of([&] { gathered.wait(); }), HasSubstr("its operand was written to"));
    EXPECT_EQ(group.all_reduce(at::ones({1})).item<double>(), 2);  // the group goes on
  });
}

TEST_P(Started, AHandleMayOutliveItsGroup) {
  run_as_threads(2, [](World world) {
    auto group = world.make_group("short-lived", {0, 1}, GetParam());
    Pending pending = group->start_all_reduce(at::ones({10'000}));
    group.reset();
    EXPECT_TRUE(at::equal(pending.wait(), at::full({10'000}, 2.0)));
  });
}

TEST(StartedAlone, AtSizeOneEverythingIsThere) {
  on_ranks(1, [](const MPU& mpu) {
    Group& group = *mpu.tensor_group();
    const Tensor x = at::ones({3});
    const std::vector<int64_t> sizes{3};
    for (Pending* each :
         {new Pending(group.start_all_reduce(x)), new Pending(group.start_all_gather(x, 0, sizes)),
          new Pending(group.start_reduce_scatter(x, 0, sizes)),
          new Pending(group.start_broadcast(x))}) {
      const std::unique_ptr<Pending> owned(each);
      EXPECT_TRUE(owned->done());
      EXPECT_TRUE(owned->wait().is_same(x));
    }
    EXPECT_EQ(group.ledger().total(), Traffic());
  });
}

using Operation = std::function<Tensor(const Tensor&)>;

/// Value, gradient and what was counted of `operation` on `x`, weighed differently on every rank.
std::tuple<Tensor, Tensor, Traffic> run(Group& group, const Operation& operation,
                                        const Tensor& input) {
  group.ledger().clear();
  const Tensor x = input.detach().clone().set_requires_grad(true);
  const Tensor y = operation(x * 2);
  (y.pow(2) * (group.rank() + 1)).sum().backward();
  return {y.detach(), x.grad(), group.ledger().total()};
}

TEST(StartedWithGradient, GivesWhatWaitingAtOnceGives) {
  on_ranks(3, [](const MPU& mpu) {
    const auto& group = mpu.tensor_group();
    const int rank = group->rank();
    const std::vector<int64_t> sizes{2, 0, 3};
    const Tensor part = numbers(rank, {4, sizes[rank]}), whole = numbers(rank, {4, 5});
    const std::vector<std::tuple<Operation, Operation, Tensor>> pairs{
        {[&](const Tensor& x) { return reduce_from(x, group); },
         [&](const Tensor& x) { return start_reduce_from(x, group).wait(); }, whole},
        {[&](const Tensor& x) { return gather_from(x, group, -1, sizes); },
         [&](const Tensor& x) { return start_gather_from(x, group, -1, sizes).wait(); }, part},
        {[&](const Tensor& x) { return gather_and_copy(x, group, 1, sizes); },
         [&](const Tensor& x) { return start_gather_and_copy(x, group, 1, sizes).wait(); }, part},
        {[&](const Tensor& x) { return reduce_and_scatter(x, group, 1, sizes); },
         [&](const Tensor& x) { return start_reduce_and_scatter(x, group, 1, sizes).wait(); },
         whole}};
    for (const auto& [at_once, started, input] : pairs) {
      const auto [y, gradient, counts] = run(*group, at_once, input);
      const auto [y2, gradient2, counts2] = run(*group, started, input);
      EXPECT_TRUE(at::equal(y, y2));
      EXPECT_TRUE(at::equal(gradient, gradient2));
      EXPECT_EQ(counts, counts2);
    }
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(
        start_gather_and_copy(at::ones({4, sizes[rank]}).set_requires_grad(true), group, 1, sizes)
            .wait()
            .requires_grad());
  });
}

TEST(StartedWithGradient, BackwardStartsTheConjugateAndGoesOnMeanwhile) {
  on_ranks(2, [](const MPU& mpu) {
    const auto& group = mpu.tensor_group();
    const std::vector<int64_t> sizes{2, 3};
    const Tensor x = at::ones({5}, at::kDouble).set_requires_grad(true);
    const Tensor w = at::ones({sizes[group->rank()]}, at::kDouble).set_requires_grad(true);
    Pending started = start_reduce_and_scatter(x, group, 0, sizes);
    const Tensor meanwhile = w * 3;  // forward overlaps with it, and so does its backward
    int seen = 0;
    meanwhile.register_hook([&](const Tensor&) {
      EXPECT_EQ(group->ledger().total("all_gather").calls, 1);  // started
      EXPECT_FALSE(x.grad().defined());                         // not finished
      ++seen;
    });
    (started.wait() * meanwhile).sum().backward();
    EXPECT_EQ(seen, 1);
    EXPECT_TRUE(at::equal(x.grad(), at::full({5}, 3.0, at::kDouble)));
    EXPECT_TRUE(at::equal(w.grad(), at::full_like(w, 3 * 2.0)));
  });
}

TEST(StartedWithGradient, GradientsOfGradients) {
  on_ranks(2, [](const MPU& mpu) {
    const auto& group = mpu.tensor_group();
    const std::vector<int64_t> sizes{2, 3};
    const auto penalty = [&](const Operation& operation, const Tensor& input) {
      const Tensor x = input.clone().set_requires_grad(true);
      const Tensor gradient =
          torch::autograd::grad({operation(x).pow(3).sum()}, {x}, {}, true, true)[0];
      gradient.pow(2).sum().backward();
      return x.grad();
    };
    const Tensor whole = numbers(group->rank(), {5}), part = numbers(3, {sizes[group->rank()]});
    EXPECT_TRUE(at::equal(
        penalty(
            [&](const Tensor& x) { return start_reduce_and_scatter(x, group, 0, sizes).wait(); },
            whole),
        penalty([&](const Tensor& x) { return reduce_and_scatter(x, group, 0, sizes); }, whole)));
    EXPECT_TRUE(at::equal(
        penalty([&](const Tensor& x) { return start_gather_and_copy(x, group, 0, sizes).wait(); },
                part),
        penalty([&](const Tensor& x) { return gather_and_copy(x, group, 0, sizes); }, part)));
  });
}

}  // namespace
}  // namespace oslo
