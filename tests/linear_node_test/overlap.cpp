// The backward of a linear layer whose input was copied or gathered: the collective is started,
// the weight's gradient computed, the collective waited for; numbers and counts are the same.
#include <gmock/gmock.h>

#include "mpu/collectives/overlap.h"
#include "tests/support/placed_values.h"
#include "tests/support/recorded_nodes.h"

namespace linear_node {
namespace {

using oslo::OverlapScope;
using oslo::Traffic;
using oslo::test::RecordedNodes;
using placed_values::expect_close;
using placed_values::leaf;
using placed_values::marked;
using placed_values::numbers;
using placed_values::on_ranks;
using placed_values::Tensor;
using testing::ElementsAre;

constexpr const char* kInput = "OsloLinearBackward";
constexpr const char* kWeight = "OsloLinearWeightBackward";
constexpr const char* kCopy = "OsloCopyBackward";
constexpr const char* kGather = "OsloGatherAndCopyBackward";
constexpr const char* kWait = "OsloStartedBackward";

/// A column layer, whose bias is cut with it, on this rank and on one device.
struct Column {
  Tensor x, weight, bias, plain_x, plain_weight, plain_bias;

  Column(const oslo::MPU& mpu, at::IntArrayRef sizes, int64_t features = 7)
      : plain_x(leaf(numbers(sizes))),
        plain_weight(leaf(numbers({features, sizes.back()}, 0.5))),
        plain_bias(leaf(numbers({features}, 0.7))) {
    x = leaf(plain_x);
    weight = marked(plain_weight, mpu);
    bias = marked(plain_bias, mpu);
  }

  Tensor forward() const { return at::linear(x, weight, bias); }
  Tensor plain_forward() const { return at::linear(plain_x, plain_weight, plain_bias); }

  void expect_as_plain() const {
    expect_close(x.grad(), plain_x.grad(), "gradient of x");
    expect_close(weight.grad(), plain_weight.grad(), "gradient of the weight");
    expect_close(bias.grad(), plain_bias.grad(), "gradient of the bias");
  }
};

Traffic traffic(const oslo::MPU& mpu) {
  return mpu.tensor_group()->ledger().total();
}

TEST(LinearOverlap, StartsTheAllReduceBeforeTheWeightsProductAndWaitsAfterIt) {
  on_ranks(3, [](const oslo::MPU& mpu) {
    Column layer(mpu, {2, 3, 5});
    const OverlapScope overlap(true);
    layer.plain_forward().sin().sum().backward();
    const Tensor y = layer.forward();
    expect_close(y, layer.plain_forward(), "y");
    const RecordedNodes nodes;
    y.sin().sum().backward();
    EXPECT_THAT(nodes.own(), testing::IsSupersetOf({kInput, kCopy, kWeight, kWait}));
    const auto names = nodes.own();
    const auto at = [&](const char* name) { return std::ranges::find(names, name); };
    EXPECT_LT(at(kInput), at(kCopy));
    EXPECT_LT(at(kCopy), at(kWeight));
    EXPECT_LT(at(kWeight), at(kWait));
    layer.expect_as_plain();
  });
}

TEST(LinearOverlap, IsOnTheCpuForWhatSharedMemoryMovesInOneRound) {
  on_ranks(2, [](const oslo::MPU& mpu) {
    const auto nodes_of = [&](int64_t rows) {
      Column layer(mpu, {rows, 5});
      const Tensor y = layer.forward();
      const RecordedNodes nodes;
      oslo::local_tensor(y).sum().backward();
      return nodes.own();
    };
    // A round moves 256 KiB; a row is five doubles.
    EXPECT_THAT(nodes_of(6553), ElementsAre(kInput, kCopy, kWeight, kWait));
    EXPECT_THAT(nodes_of(6554), ElementsAre(kInput, kWeight, kCopy));
    const OverlapScope overlap(false);
    EXPECT_THAT(nodes_of(4), ElementsAre(kInput, kWeight, kCopy));
  });
}

TEST(LinearOverlap, MovesWhatACallMoves) {
  for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{5}}) {
    on_ranks(2, [&](const oslo::MPU& mpu) {
      const auto moved = [&](bool overlaps) {
        const OverlapScope overlap(overlaps);
        Column layer(mpu, {rows, 3});
        const Traffic before = traffic(mpu);
        layer.plain_forward().sin().sum().backward();
        layer.forward().sin().sum().backward();
        layer.expect_as_plain();
        return traffic(mpu) - before;
      };
      EXPECT_EQ(moved(true), moved(false)) << rows;
    });
  }
}

TEST(LinearOverlap, ServesAllConsumersOfOneValueByOneCollective) {
  on_ranks(2, [](const oslo::MPU& mpu) {
    for (const bool other_first : {false, true}) {
      Column first(mpu, {4, 5}), second(mpu, {4, 5}, 6);
      second.x = first.x;
      second.plain_x = first.plain_x;
      const auto other = [](const Tensor& x, const Tensor& weight) {
        return at::einsum("ik,nk->in", {x, weight}).sin().sum();  // no node of ours
      };
      const OverlapScope overlap(true);
      (first.plain_forward().sin().sum() + second.plain_forward().cos().sum() +
       other(first.plain_x, first.plain_weight))
          .backward();
      Tensor loss = other_first ? other(first.x, first.weight) : Tensor();
      const Tensor sum = first.forward().sin().sum() + second.forward().cos().sum();
      loss = loss.defined() ? loss + sum : sum + other(first.x, first.weight);
      const int64_t before = placed_values::all_reduces(mpu);
      const RecordedNodes nodes;
      loss.backward();
      EXPECT_EQ(placed_values::all_reduces(mpu) - before, 1);
      EXPECT_EQ(nodes.count(kCopy), 1);
      const auto names = nodes.own();
      const auto started = std::ranges::find(names, kCopy);
      EXPECT_EQ(std::count(names.begin(), started, kInput), 2);
      EXPECT_EQ(std::count(started, names.end(), kWeight), 2);
      EXPECT_EQ(names.back(), kWait);
      first.expect_as_plain();
      expect_close(second.weight.grad(), second.plain_weight.grad(), "the other weight");
    }
  });
}

TEST(LinearOverlap, ReduceScattersTheGradientOfAGatheredInput) {
  on_ranks(2, [](const oslo::MPU& mpu) {
    Column layer(mpu, {7, 2, 5});
    // Beside a weight of the plan the input moves: it comes cut along the sequence.
    auto uses = std::make_shared<oslo::WeightUses>();
    uses->planned = "w (a test)";
    uses->product.resize(1);
    oslo::set_weight_uses(layer.weight, uses);
    const OverlapScope overlap(true);
    layer.plain_forward().sin().sum().backward();
    const Tensor y = at::linear(placed_values::placed(layer.x, mpu, 0), layer.weight, layer.bias);
    const Traffic before = mpu.tensor_group()->ledger().total("reduce_scatter");
    const RecordedNodes nodes;
    y.sin().sum().backward();
    EXPECT_EQ((mpu.tensor_group()->ledger().total("reduce_scatter") - before).calls, 1);
    const auto names = nodes.own();
    const auto at = [&](const char* name) { return std::ranges::find(names, name); };
    EXPECT_LT(at(kGather), at(kWeight));
    EXPECT_LT(at(kWeight), at(kWait));
    layer.expect_as_plain();
  });
}

TEST(LinearOverlap, GivesGradientsOfGradients) {
  for (const bool overlaps : {false, true}) {
    on_ranks(2, [&](const oslo::MPU& mpu) {
      Column layer(mpu, {4, 5});
      const OverlapScope overlap(overlaps);
      const auto penalty = [](const Tensor& y, const Tensor& x) {
        const Tensor gradient =
            torch::autograd::grad({y.sin().sum()}, {x}, {}, true, /*create_graph=*/true)[0];
        return gradient.square().sum();
      };
      penalty(layer.plain_forward(), layer.plain_x).backward();
      penalty(layer.forward(), layer.x).backward();
      layer.expect_as_plain();
    });
  }
}

TEST(LinearOverlap, GoesOverOneGraphTwice) {
  on_ranks(2, [](const oslo::MPU& mpu) {
    Column layer(mpu, {4, 5});
    const OverlapScope overlap(true);
    const Tensor expected = layer.plain_forward().sin().sum(), loss = layer.forward().sin().sum();
    for (const bool again : {true, false}) {
      expected.backward({}, again);
      loss.backward({}, again);
    }
    layer.expect_as_plain();
    EXPECT_THAT(placed_values::error_of([&] { loss.backward(); }),
                testing::HasSubstr("second time"));
  });
}

TEST(LinearOverlap, ComputesOnlyWhatIsAskedFor) {
  on_ranks(2, [](const oslo::MPU& mpu) {
    const OverlapScope overlap(true);
    {
      Column layer(mpu, {4, 5});
      layer.weight.set_requires_grad(false);
      layer.bias.set_requires_grad(false);
      layer.plain_forward().sin().sum().backward();
      layer.forward().sin().sum().backward();
      expect_close(layer.x.grad(), layer.plain_x.grad(), "gradient of x alone");
      EXPECT_FALSE(layer.weight.grad().defined());
    }
    {
      Column layer(mpu, {4, 5});
      layer.x.set_requires_grad(false);
      layer.weight.set_requires_grad(false);
      layer.plain_forward().sin().sum().backward();
      const int64_t before = placed_values::all_reduces(mpu);
      oslo::local_tensor(layer.forward().sin()).sum().backward();
      EXPECT_EQ(placed_values::all_reduces(mpu), before);
      expect_close(layer.bias.grad(), layer.plain_bias.grad(), "gradient of the bias alone");
    }
    {
      Column layer(mpu, {5});
      const auto plain = torch::autograd::grad({layer.plain_forward().sum()}, {layer.plain_weight});
      const auto mine = torch::autograd::grad({layer.forward().sum()}, {layer.weight});
      expect_close(mine[0], plain[0], "gradient of the weight, by autograd::grad");
      EXPECT_FALSE(layer.x.grad().defined());
    }
  });
}

TEST(LinearOverlap, TakesPlainMatricesByAddmm) {
  for (const bool transposed : {false, true}) {
    on_ranks(2, [&](const oslo::MPU& mpu) {
      const Tensor plain_x = leaf(numbers({4, 5})), plain_bias = leaf(numbers({7}, 0.7));
      const Tensor plain_weight = leaf(transposed ? numbers({7, 5}, 0.5) : numbers({5, 7}, 0.5));
      const Tensor x = leaf(plain_x), bias = marked(plain_bias, mpu);
      const Tensor weight = marked(plain_weight, mpu, transposed ? 0 : 1);
      const auto forward = [&](const Tensor& b, const Tensor& input, const Tensor& w) {
        return at::addmm(b, input, transposed ? w.t() : w);
      };
      const OverlapScope overlap(true);
      forward(plain_bias, plain_x, plain_weight).sin().sum().backward();
      const RecordedNodes nodes;
      forward(bias, x, weight).sin().sum().backward();
      EXPECT_EQ(nodes.count(kWait), 1);
      expect_close(x.grad(), plain_x.grad(), "x");
      expect_close(weight.grad(), plain_weight.grad(), "weight");
      EXPECT_TRUE(weight.grad().is_contiguous());
      expect_close(bias.grad(), plain_bias.grad(), "bias");
    });
  }
}

TEST(LinearOverlap, ChecksThatWhatItSavedWasNotWritten) {
  on_ranks(2, [](const oslo::MPU& mpu) {
    Column layer(mpu, {4, 5});
    const Tensor x = layer.x * 1.0;
    const Tensor y = at::linear(x, layer.weight, layer.bias);
    x.detach().mul_(2.0);
    EXPECT_THAT(placed_values::error_of([&] { oslo::local_tensor(y).sum().backward(); }),
                testing::HasSubstr("modified by an inplace operation"));
  });
}

}  // namespace
}  // namespace linear_node
