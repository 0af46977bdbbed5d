// What layers on a grid move, forward and backward: the papers' formulas, in elements that all
// ranks together receive (design of the modes: docs/grids.md).
#include <gmock/gmock.h>

#include <map>
#include <numeric>

#include "tests/grid_layers_test/grid_layers.h"
#include "tests/support/counted_memory.h"

namespace grid_layers {
namespace {

/// By axis and collective: calls of this rank, elements that all ranks together received.
using Moved = std::map<std::string, std::pair<int64_t, int64_t>>;

Moved moved_by(const oslo::MPU& mpu, const std::vector<oslo::Axis>& axes,
               const std::function<void()>& action) {
  std::vector<int> everybody(mpu.world().size());
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto all = mpu.world().make_group("all", everybody);
  for (const oslo::Axis& axis : axes) mpu.group(axis.name)->ledger().clear();
  action();
  Moved moved;
  for (const oslo::Axis& axis : axes) {
    const oslo::Ledger& ledger = mpu.group(axis.name)->ledger();
    for (const char* operation : {"all_gather", "reduce_scatter", "all_reduce"}) {
      const oslo::Traffic own = ledger.total(operation);
      int64_t elements = 0;
      for (const int64_t one : all->exchange(own.elements)) elements += one;
      if (own.calls > 0) moved[axis.name + " " + operation] = {own.calls, elements};
    }
  }
  return moved;
}

int64_t elements_of(const Moved& moved) {
  int64_t sum = 0;
  for (const auto& [name, calls] : moved) sum += calls.second;
  return sum;
}

/// Of one step of a linear layer without bias on M rows.
template <typename Layer>
Moved moved_by_step(const oslo::MPU& mpu, const std::vector<oslo::Axis>& axes, Layer& layer,
                    int64_t m, int64_t k) {
  const Tensor x = layer->split_input(torch::ones({m, k}).set_requires_grad(true)).detach();
  x.set_requires_grad(true);
  Moved moved = moved_by(mpu, axes, [&] {
    const Tensor y = layer(x);
    const Tensor part = local_tensor(y);
    part.backward(torch::ones(part.sizes()));
  });
  return moved;
}

constexpr int64_t kM = 24, kK = 20, kN = 12, kMK = kM * kK, kKN = kK * kN, kMN = kM * kN;

oslo::nn::LinearOptions plain() {
  return oslo::nn::LinearOptions(kK, kN).bias(false);
}

TEST(Bytes, Linear2D) {
  on_axes(Flat::axes(), [](const oslo::MPU& mpu) {
    auto layer = made<oslo::nn::Linear2D>(plain(), mpu),
         keeps = made<oslo::nn::Linear2D>(plain().keep_gathered(true), mpu);
    const Moved moved = moved_by_step(mpu, Flat::axes(), layer, kM, kK);
    EXPECT_EQ(moved, (Moved{{"row all_gather", {2, 2 * kKN}},
                            {"row reduce_scatter", {1, kKN}},
                            {"column all_gather", {2, 2 * kMK}},
                            {"column reduce_scatter", {1, kMK}}}));
    EXPECT_EQ(elements_of(moved), 3 * (kMK + kKN));
    EXPECT_EQ(elements_of(moved_by_step(mpu, Flat::axes(), keeps, kM, kK)), 2 * (kMK + kKN));
    const auto copy = std::dynamic_pointer_cast<oslo::nn::Linear2DImpl>(layer->clone());
    oslo::nn::Linear2D cloned(copy);
    EXPECT_EQ(moved_by_step(mpu, Flat::axes(), cloned, kM, kK), moved);
  });
}

/// q = 3.
TEST(Bytes, Linear2DOnNineRanks) {
  const std::vector<oslo::Axis> axes{{"row", 3}, {"column", 3}};
  on_axes(axes, [&](const oslo::MPU& mpu) {
    const auto options = oslo::nn::LinearOptions(18, 12).bias(false);
    auto layer = made<oslo::nn::Linear2D>(options, mpu);
    EXPECT_EQ(elements_of(moved_by_step(mpu, axes, layer, 6, 18)), 3 * 2 * (6 * 18 + 18 * 12));
  });
}

/// The weight's gradient is summed over depth, as a part: 2(d-1)KN.
TEST(Bytes, Linear2p5D) {
  on_axes(Deep::axes(), [](const oslo::MPU& mpu) {
    auto layer = made<oslo::nn::Linear2p5D>(plain(), mpu),
         keeps = made<oslo::nn::Linear2p5D>(plain().keep_gathered(true), mpu);
    const Moved moved = moved_by_step(mpu, Deep::axes(), layer, kM, kK);
    EXPECT_EQ(moved, (Moved{{"depth all_reduce", {1, 2 * kKN}},
                            {"row all_gather", {2, 2 * 2 * kKN}},
                            {"row reduce_scatter", {1, 2 * kKN}},
                            {"column all_gather", {2, 2 * kMK}},
                            {"column reduce_scatter", {1, kMK}}}));
    EXPECT_EQ(elements_of(moved), 3 * (kMK + 2 * kKN) + 2 * kKN);
    EXPECT_EQ(elements_of(moved_by_step(mpu, Deep::axes(), keeps, kM, kK)),
              2 * (kMK + 2 * kKN) + 2 * kKN);
  });
}

TEST(Bytes, Linear3D) {
  on_axes(Cube::axes(), [](const oslo::MPU& mpu) {
    for (const CubeSide side : {CubeSide::first, CubeSide::second}) {
      const bool first = side == CubeSide::first;
      const std::string weight = first ? "weight" : "output", output = first ? "output" : "weight";
      auto layer = made<oslo::nn::Linear3D>(plain(), mpu, side);
      const Moved moved = moved_by_step(mpu, Cube::axes(), layer, kM, kK);
      EXPECT_EQ(moved, (Moved{{"input all_gather", {1, kKN}},
                              {"input reduce_scatter", {1, kKN}},
                              {weight + " all_gather", {1, kMK}},
                              {weight + " reduce_scatter", {1, kMK}},
                              {output + " reduce_scatter", {1, kMN}},
                              {output + " all_gather", {1, kMN}}}));
      EXPECT_EQ(elements_of(moved), 2 * (kMK + kKN + kMN));
    }
  });
}

/// Of a bias [N] in q^2 parts: gathered over row where it is added, its gradient scattered back.
TEST(Bytes, ABias) {
  on_axes(Flat::axes(), [](const oslo::MPU& mpu) {
    auto layer = made<oslo::nn::Linear2D>(kK, kN, mpu);
    EXPECT_EQ(elements_of(moved_by_step(mpu, Flat::axes(), layer, kM, kK)),
              3 * (kMK + kKN) + 2 * kN);
  });
}

/// x W^T, W cut as x is: 2(q-1)(KN + MN), and W gathered once more in backward.
TEST(Bytes, VocabParallelClassifier2D) {
  on_axes(Flat::axes(), [](const oslo::MPU& mpu) {
    auto layer = made<oslo::nn::VocabParallelClassifier2D>(plain(), mpu);
    EXPECT_EQ(moved_by_step(mpu, Flat::axes(), layer, kM, kK),
              (Moved{{"row all_gather", {2, 2 * kKN}},
                     {"row reduce_scatter", {1, kKN}},
                     {"column reduce_scatter", {1, kMN}},
                     {"column all_gather", {1, kMN}}}));
  });
}

TEST(Bytes, Embeddings) {
  constexpr int64_t words = 20, features = 8, rows = 24;
  const Tensor ids = torch::arange(rows) % words;
  const auto moved_by_look_up = [&](const oslo::MPU& mpu, const auto& axes, auto& table) {
    return moved_by(mpu, axes, [&] {
      const Tensor part = local_tensor(table(ids));
      part.backward(torch::ones(part.sizes()));
    });
  };
  on_axes(Flat::axes(), [&](const oslo::MPU& mpu) {
    auto table = made<oslo::nn::Embedding2D>(words, features, mpu);
    auto vocabulary = made<oslo::nn::VocabParallelEmbedding2D>(words, features, mpu);
    EXPECT_EQ(moved_by_look_up(mpu, Flat::axes(), table),
              (Moved{{"row all_gather", {1, words * features}},
                     {"row reduce_scatter", {1, words * features}}}));
    EXPECT_EQ(moved_by_look_up(mpu, Flat::axes(), vocabulary),
              (Moved{{"row reduce_scatter", {1, rows * features}},
                     {"row all_gather", {1, rows * features}}}));
  });
  on_axes(Cube::axes(), [&](const oslo::MPU& mpu) {
    auto vocabulary = made<oslo::nn::VocabParallelEmbedding3D>(words, features, mpu);
    EXPECT_EQ(moved_by_look_up(mpu, Cube::axes(), vocabulary),
              (Moved{{"input all_gather", {1, words * features}},
                     {"input reduce_scatter", {1, words * features}},
                     {"weight reduce_scatter", {1, rows * features}},
                     {"weight all_gather", {1, rows * features}}}));
  });
}

/// Two numbers a row, over the axis that cuts the features alone.
TEST(Bytes, LayerNorm2D) {
  on_axes(Flat::axes(), [](const oslo::MPU& mpu) {
    auto norm = made<oslo::nn::LayerNorm2D>(
        torch::nn::LayerNormOptions({kK}).elementwise_affine(false), mpu);
    const Moved moved = moved_by_step(mpu, Flat::axes(), norm, kM, kK);
    // All-reduces of the M/q rows of each of 4 ranks, 2(q-1)/q elements received for each.
    EXPECT_EQ(moved, (Moved{{"column all_reduce", {4, 4 * 4 * kM / 2}}}));
  });
}

/// Between forward and backward a layer that gathers again keeps parts alone, which the parameters
/// and the program have anyway.
TEST(Bytes, WhatIsKeptForBackward) {
  oslo::test::CountedMemory memory;
  for (const bool keep : {false, true}) {
    on_axes(Flat::axes(), [&](const oslo::MPU& mpu) {
      const auto moment = [&] {
        mpu.world().barrier();
        const int64_t bytes = memory.bytes();
        mpu.world().barrier();
        return bytes;
      };
      auto layer = made<oslo::nn::Linear2D>(plain().keep_gathered(keep), mpu);
      const Tensor x = layer->split_input(torch::ones({kM, kK}, torch::requires_grad()));
      const int64_t before = moment();
      const Tensor y = layer(x);
      // Of all ranks: the result, and x gathered over columns and the weight over rows.
      EXPECT_EQ(moment() - before, 4 * (kMN + (keep ? 2 * kMK + 2 * kKN : 0)));
    });
  }
}

}  // namespace
}  // namespace grid_layers
