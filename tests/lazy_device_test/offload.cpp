// What operators save, moved to the host and back, on a device that does nothing before it must.
#include "parallelizers/memory/offload/offload_scope.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>
#include <vector>

#include "parallelizers/memory/offload/foreseen_moves.h"
#include "parallelizers/memory/offload/moved_memory.h"
#include "tests/lazy_device_test/late_tensors.h"
#include "tests/lazy_device_test/lazy_device.h"
#include "tests/support/error_of.h"

namespace oslo::offload_test {
namespace {

using at::Tensor;
using test::device_bytes;
using test::late;
using test::seen;
using torch::autograd::SavedVariable;

constexpr int64_t kFloat = 4;

/// What a node of LibTorch's does.
SavedVariable saved(const Tensor& tensor) {
  return SavedVariable(tensor, /*is_output=*/false);
}

Tensor content(int64_t size, int64_t first) {
  return at::arange(first, first + size, at::kFloat);
}

/// Of unequal sizes.
int64_t size_of(int i) {
  return 10 + 7 * (i % 5);
}

OffloadOptions options(int64_t ahead_elements) {
  return OffloadOptions().at_least(1).ahead(ahead_elements * kFloat);
}

TEST(Offload, ComesBackAsItWasStepAfterStep) {
  for (const int64_t ahead : {1, 40, 100, 100000}) {
    SCOPED_TRACE(ahead);
    for (int step = 0; step < 3; ++step) {
      const OffloadScope scope({}, options(ahead));
      std::vector<SavedVariable> nodes;
      for (int i = 0; i < 12; ++i)
        nodes.push_back(saved(late(content(size_of(i), 100 * step + i))));
      for (int i = 11; i >= 0; --i) {
        EXPECT_TRUE(at::equal(seen(nodes[i].unpack()), content(size_of(i), 100 * step + i))) << i;
        nodes[i].reset_data();
      }
      EXPECT_EQ(scope.moved() > 0, ahead < 1000);
    }
  }
}

TEST(Offload, TheHostWaitsForNothing) {
  const OffloadScope scope({}, options(25));
  std::vector<SavedVariable> nodes;
  test::finish_all_streams();
  for (int i = 0; i < 6; ++i) nodes.push_back(saved(late(content(10, i))));
  EXPECT_EQ(test::undone_copies(), 6u + 4) << "made, and moved but for the last two";
  EXPECT_EQ(scope.moved(), 4 * 10 * kFloat);
  test::finish_all_streams();  // the device's memory is free now
  const Tensor last = nodes[5].unpack();
  EXPECT_EQ(test::undone_copies(), 1u) << "the last two are there, the one before comes back";
  const Tensor before_it = nodes[4].unpack();
  EXPECT_EQ(test::undone_copies(), 2u);
  EXPECT_TRUE(at::equal(seen(last), content(10, 5)));
  EXPECT_TRUE(at::equal(seen(nodes[3].unpack()), content(10, 3)));
  test::finish_all_streams();
}

TEST(Offload, MemoryIsNotReusedBeforeItsCopiesAreDone) {
  const OffloadScope scope({}, options(1));
  const Tensor first = late(content(10, 1));
  const SavedVariable node = saved(first);
  const SavedVariable pushes = saved(late(content(10, 2)));
  EXPECT_EQ(test::streams_told(first), 1u) << "the stream of copies reads it";
  const void* const there = first.const_data_ptr();
  const_cast<Tensor&>(first).reset();
  test::finish_all_streams();
  const Tensor back = node.unpack();
  EXPECT_EQ(test::streams_told(back), 1u) << "made on the stream of copies, the current one reads";
  EXPECT_TRUE(at::equal(seen(back), content(10, 1))) << there;
}

TEST(Offload, IsReadAfterWhatTheComputeStreamHolds) {
  test::finish_all_streams();
  const c10::Stream copies =
      c10::impl::VirtualGuardImpl(c10::kPrivateUse1).getStreamFromGlobalPool(test::kLazy);
  offload::MovedMemory memory(late(content(10, 3)), 0, copies);
  memory.move();
  EXPECT_EQ(test::undone_copies(), 2u);
  const c10::StreamGuard guard(copies);
  test::finish_current_stream();
  EXPECT_EQ(test::undone_copies(), 0u) << "the content first";
}

/// Bytes that are held after each of a forward's and a backward's operators, copies done.
std::vector<int64_t> held(std::optional<OffloadOptions> how) {
  const int64_t before = device_bytes();
  std::vector<int64_t> after;
  const auto note = [&] {
    test::finish_all_streams();
    after.push_back(device_bytes() - before);
  };
  std::vector<SavedVariable> nodes;
  {
    std::optional<OffloadScope> scope;
    if (how) scope.emplace(std::vector<Tensor>(), *how);
    for (int i = 0; i < 20; ++i) {
      nodes.push_back(saved(late(content(size_of(i), i))));
      note();
    }
  }
  for (int i = 19; i >= 0; --i) {
    const Tensor used = nodes[i].unpack();
    note();
    nodes[i].reset_data();
  }
  return after;
}

TEST(Offload, NeverHoldsMoreThanWithoutIt) {
  const std::vector<int64_t> plain = held(std::nullopt);
  for (const int64_t ahead : {1, 30, 60, 150, 100000}) {
    const std::vector<int64_t> moved = held(options(ahead));
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_LE(moved[i], plain[i]) << ahead << " " << i;
    // What is ahead, what is used, and one that is larger than what was left of the room.
    const int64_t most = *std::max_element(moved.begin(), moved.end());
    EXPECT_LE(most, std::max<int64_t>((ahead + 2 * size_of(4)) * kFloat, 0)) << ahead;
  }
}

/// The bytes that `held` sees, from the moves that are foreseen.
std::vector<int64_t> foreseen(const OffloadOptions& how) {
  std::vector<offload::SavedValue> values;
  for (int i = 0; i < 20; ++i) values.push_back({size_of(i) * kFloat, {i}, i});
  const auto moves = offload::foresee_moves(values, 20, how);
  std::vector<int64_t> after;
  const auto note = [&](const auto& is_here) {
    int64_t sum = 0;
    for (int i = 0; i < 20; ++i) sum += is_here(i) ? values[i].bytes : 0;
    after.push_back(sum);
  };
  for (int op = 0; op < 20; ++op) {
    note([&](int i) { return i <= op && (!moves[i].moves() || moves[i].leaves > op); });
  }
  for (int op = 19; op >= 0; --op) {
    note([&](int i) { return i <= op && (!moves[i].moves() || moves[i].returns >= op); });
  }
  return after;
}

TEST(Offload, IsForeseenByteForByte) {
  for (const int64_t ahead : {1, 30, 60, 150, 100000}) {
    SCOPED_TRACE(ahead);
    EXPECT_EQ(foreseen(options(ahead)), held(options(ahead)));
  }
  // What the program holds leaves with it, or never; and what is small stays.
  const auto moves =
      offload::foresee_moves({{40, {0}, 2}, {40, {1}, 4}, {39, {1}, 1}, {40, {3}, 3}}, 4,
                             OffloadOptions().at_least(40).ahead(1));
  EXPECT_EQ(moves[0].leaves, 2);
  EXPECT_EQ(moves[0].returns, 0);
  for (const int stays : {1, 2, 3}) EXPECT_FALSE(moves[stays].moves()) << stays;
}

TEST(Offload, ParametersSmallTensorsAndSmallPartsStay) {
  const Tensor parameter = late(content(24, 0)).view({4, 6});
  const OffloadScope scope({parameter}, OffloadOptions().at_least(40).ahead(1));
  const auto pushed = [] { return saved(late(content(10, 2))); };
  const SavedVariable a = saved(parameter), b = saved(parameter.as_strided({6, 4}, {1, 6})),
                      small = saved(late(content(9, 0)));
  const Tensor large = late(content(1000, 0));
  const SavedVariable part = saved(large.as_strided({12}, {1}));
  const SavedVariable last = pushed();
  EXPECT_EQ(scope.moved(), 0);
  const SavedVariable behind = pushed();
  EXPECT_EQ(scope.moved(), 40);
}

TEST(Offload, MemoryMovesOnceWithAllItsViews) {
  const OffloadScope scope({}, options(1));
  std::vector<SavedVariable> parts;
  {
    const Tensor all = late(content(30, 0));
    for (int i = 0; i < 3; ++i) parts.push_back(saved(all.as_strided({2, 5}, {5, 1}, 10 * i)));
    parts.push_back(saved(late(content(10, 0))));  // pushes it out
    parts.push_back(saved(all));
  }
  EXPECT_EQ(scope.moved(), 30 * kFloat);
  const Tensor last = parts[4].unpack(), first = parts[0].unpack();
  EXPECT_EQ(last.storage().data_ptr().get(), first.storage().data_ptr().get());
  EXPECT_TRUE(at::equal(seen(first), content(10, 0).view({2, 5})));
  EXPECT_TRUE(at::equal(seen(parts[2].unpack()), content(10, 20).view({2, 5})));
}

TEST(Offload, WhatTheProgramHoldsIsNotCopiedBack) {
  const OffloadScope scope({}, options(1));
  const Tensor mine = late(content(10, 0));
  const SavedVariable node = saved(mine), pushes = saved(late(content(10, 1)));
  test::finish_all_streams();
  EXPECT_EQ(scope.moved(), 10 * kFloat);
  const int64_t before = device_bytes();
  EXPECT_EQ(node.unpack().const_data_ptr(), mine.const_data_ptr());
  EXPECT_EQ(device_bytes(), before);
}

TEST(Offload, TwoBackwardPassesAndOneThatNeverComes) {
  test::finish_all_streams();
  const int64_t before = device_bytes();
  {
    const OffloadScope scope({}, options(15));
    std::vector<SavedVariable> nodes;
    for (int i = 0; i < 4; ++i) nodes.push_back(saved(late(content(10, i))));
    for (int pass = 0; pass < 2; ++pass) {
      for (int i = 3; i >= 0; --i) {
        EXPECT_TRUE(at::equal(seen(nodes[i].unpack()), content(10, i))) << pass << i;
      }
      test::finish_all_streams();
      EXPECT_EQ(device_bytes() - before, 10 * kFloat) << "the last one was not moved";
    }
    nodes.clear();
    for (int i = 0; i < 4; ++i) nodes.push_back(saved(late(content(10, i))));
  }
  test::finish_all_streams();
  EXPECT_EQ(device_bytes(), before);
}

TEST(Offload, WhatIsWrittenAfterwardsIsAnErrorAndBetweenTwoSavesIsSavedAnew) {
  const OffloadScope scope({}, options(1));
  Tensor tensor = late(content(10, 0));
  const SavedVariable first = saved(tensor), moves_it = saved(late(content(10, 2)));
  EXPECT_EQ(scope.moved(), 10 * kFloat);
  test::finish_all_streams();
  tensor.copy_(late(content(10, 5)));
  const SavedVariable second = saved(tensor), pushes = saved(late(content(10, 1)));
  tensor.reset();
  test::finish_all_streams();
  EXPECT_THAT(test::error_of([&] { first.unpack(); }),
              testing::HasSubstr("modified by an inplace operation"));
  EXPECT_TRUE(at::equal(seen(second.unpack()), content(10, 5)));
}

TEST(Offload, OnTheCPUNothingMoves) {
  const Tensor x = at::ones({64}).requires_grad_();
  const OffloadScope scope({}, options(1));
  x.sin().exp().sum().backward();
  EXPECT_EQ(scope.moved(), 0);
  EXPECT_TRUE(x.grad().allclose(x.detach().cos() * x.detach().sin().exp()));
  EXPECT_THAT(test::error_of([] { OffloadOptions().ahead(0); }), testing::HasSubstr("ahead(0)"));
  EXPECT_THAT(test::error_of([] { OffloadOptions().at_least(-1); }),
              testing::HasSubstr("at_least(-1)"));
}

}  // namespace
}  // namespace oslo::offload_test
