// Acceptance A1: three layers without bias, as torchtitan's test of its own recomputation has them.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "parallelizers/memory/recompute/checkpoint.h"
#include "tests/support/counted_memory.h"
#include "tests/support/counted_products.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using torch::Tensor;

constexpr double kUnit = 2.0 * 512 * 512 * 512;
constexpr double kMiB = 1024.0 * 1024.0;

struct Figures {
  double flops = 0, kept = 0;
};

/// Which of the three products are kept; nothing: no checkpoint at all.
using Kept = std::optional<std::vector<bool>>;

class ThreeProducts : public testing::Test {
 protected:
  ThreeProducts() {
    at::set_num_threads(1);
    make_seeded(3, [&] {
      for (const int width : {512, 512, 1024}) {
        layers_.push_back(torch::nn::Linear(torch::nn::LinearOptions(512, width).bias(false)));
      }
      x_ = torch::randn({512, 512}).requires_grad_();
      return 0;
    });
  }

  Tensor forward(const Tensor& x) {
    return layers_[2]->forward(layers_[1]->forward(layers_[0]->forward(x)));
  }

  /// Backward's products, and what forward keeps; gradients must be those without a checkpoint.
  Figures run(const Kept& kept, bool whole) {
    clear();
    forward(x_).sum().backward();
    const std::vector<Tensor> expected = gradients();
    clear();
    const CountedMemory memory;
    int product = 0;
    const auto options = CheckpointOptions().whole(whole).keep_if([&](const std::string& op, auto) {
      return op == "aten::mm" && kept && (*kept)[product++];
    });
    Tensor loss = kept ? checkpoint(
                             options, [&](const Tensor& x) { return forward(x); }, x_)
                             .sum()
                       : forward(x_).sum();
    Figures figures;
    figures.kept = static_cast<double>(memory.bytes()) / kMiB;
    const CountedProducts products;
    loss.backward();
    figures.flops = products.made() / kUnit;
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(gradients()[i].equal(expected[i]));
    return figures;
  }

 private:
  void clear() {
    x_.mutable_grad().reset();
    for (auto& layer : layers_) layer->weight.mutable_grad().reset();
  }
  std::vector<Tensor> gradients() const {
    std::vector<Tensor> all = {x_.grad().clone()};
    for (const auto& layer : layers_) all.push_back(layer->weight.grad().clone());
    return all;
  }

  std::vector<torch::nn::Linear> layers_;
  Tensor x_;
};

struct Case {
  const char* name;
  Kept kept;
  double whole, least;  ///< units of products in backward
  double kept_at_most;  ///< MiB
};

const Case kCases[] = {
    {"none", std::nullopt, 8, 8, 2},
    {"every second product kept", std::vector<bool>{true, false, true}, 9, 9, 2},
    {"both 512 x 512 products forced", std::vector<bool>{false, false, true}, 10, 10, 2},
    {"the last forced", std::vector<bool>{true, false, false}, 11, 9, 1},
    {"all", std::vector<bool>{false, false, false}, 12, 10, 0},
};
/// What is not an activation: the loss, and the like.
constexpr double kCrumbs = 0.01;

TEST_F(ThreeProducts, WholeSegmentsRunAgainAsTorchtitanCounts) {
  for (const Case& each : kCases) {
    const Figures figures = run(each.kept, /*whole=*/true);
    EXPECT_EQ(figures.flops, each.whole) << each.name;
    EXPECT_LE(figures.kept, each.kept_at_most + kCrumbs) << each.name;
  }
}

TEST_F(ThreeProducts, WhatNobodyNeedsDoesNotRunAgain) {
  for (const Case& each : kCases) {
    const Figures figures = run(each.kept, /*whole=*/false);
    EXPECT_EQ(figures.flops, each.least) << each.name;
    EXPECT_LE(figures.kept, each.kept_at_most + kCrumbs) << each.name;
  }
}

}  // namespace
}  // namespace oslo::test
