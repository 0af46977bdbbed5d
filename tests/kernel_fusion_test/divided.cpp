// The backward of a fused layer is two nodes, as that of any: a collective runs while the weight's
// gradient is added in place, and a pass in two halves leaves that to the second.
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "mpu/collectives/overlap.h"
#include "mpu/group/group.h"
#include "parallelizers/placement/carrier/split_backward.h"
#include "tests/kernel_fusion_test/counted.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"
#include "tests/support/recorded_nodes.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using torch::Tensor;

constexpr int kTensorRanks = 2;

/// `pass(model, x, group, number)` gives gradients twice, which add up, on a cut model; after each
/// they are those of a plain one.
using Pass = std::function<void(Mlp&, const Tensor& x, Group&, int number)>;
void expect_gradients_of(const Pass& pass) {
  kernel_calls().clear();
  run_as_threads(kTensorRanks, [&](World world) {
    at::set_num_threads(1);
    auto plain = make_seeded(7, [] { return Mlp(); }), model = make_seeded(7, [] { return Mlp(); });
    plain->to(torch::kDouble);
    model->to(torch::kDouble);
    const ParallelModel parallel =
        initialize(model, Config::parse(fused_config(kTensorRanks)), in(world));
    for (int number = 0; number < 2; ++number) {
      const Tensor numbers = make_seeded(3 + number, [] {
        return torch::randn({3, 5, 6}, torch::kDouble);
      });
      const Tensor x = numbers.clone().requires_grad_(), other = numbers.clone().requires_grad_();
      pass(model, x, *parallel.mpu().tensor_group(), number);
      plain->forward(other).square().mean().backward();
      parity::expect_close(x.grad(), other.grad(), "gradient of the input");
      parity::expect_gradients(*model, *plain);
    }
  });
}

TEST(Divided, CollectivesRunBesideProductsThatAddInPlace) {
  expect_gradients_of([](Mlp& model, const Tensor& x, Group& group, int) {
    const OverlapScope overlap(true);
    const Tensor loss = model->forward(x).square().mean();
    const int64_t before = group.ledger().total("all_reduce").calls;
    const RecordedNodes nodes;
    loss.backward();
    EXPECT_EQ(group.ledger().total("all_reduce").calls - before, 4);
    EXPECT_EQ(nodes.count("OsloStartedBackward"), 4);
    const auto names = nodes.own();
    auto at = std::ranges::find(names, "OsloCopyBackward");
    for (; at != names.end(); at = std::find(at, names.end(), "OsloCopyBackward")) {
      const auto waits = std::find(at, names.end(), "OsloStartedBackward");
      EXPECT_EQ(std::count(at, waits, "OsloLinearWeightBackward"), 1);
      at = waits;
    }
  });
  EXPECT_EQ(kernel_calls().overwrites, kTensorRanks * kLayers);
  EXPECT_EQ(kernel_calls().adds, kTensorRanks * kLayers);
  EXPECT_EQ(kernel_calls().gelu, kTensorRanks * kGelus);  // of the second forward
  EXPECT_EQ(kernel_calls().gelu_backward, kTensorRanks * kGelus);
}

TEST(Divided, ASecondHalfAddsInPlace) {
  expect_gradients_of([](Mlp& model, const Tensor& x, Group& group, int number) {
    const auto split = std::make_shared<SplitBackward>();
    Tensor loss;
    {
      const SplitBackward::Scope scope(split);
      loss = model->forward(x).square().mean();
    }
    loss.backward();
    group.exchange(0);  // the counts are those of all ranks
    EXPECT_EQ(kernel_calls().overwrites, number * kTensorRanks * kLayers);
    EXPECT_EQ(kernel_calls().adds, 0);
    EXPECT_EQ(kernel_calls().gelu_backward, number * kTensorRanks * kGelus);
    group.exchange(0);
    EXPECT_GT(split->left(), 0u);
    split->run();
    group.exchange(0);
    EXPECT_EQ(kernel_calls().overwrites, kTensorRanks * kLayers);
    EXPECT_EQ(kernel_calls().adds, number * kTensorRanks * kLayers);
    group.exchange(0);
  });
}

}  // namespace
}  // namespace oslo::test
