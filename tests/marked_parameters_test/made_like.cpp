// Tensors that are made like a parameter, and what set_data takes.
#include <gmock/gmock.h>

#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::HasSubstr;

/// Tensors like a parameter, and copies of one, are no parameters: the forward may write to them
/// what a gradient follows.
TEST(MarkedParameters, WhatIsMadeLikeOneIsWrittenByTheForward) {
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&, const Tensor&)>>>
      uses = {
          {"1 - p", [](const Tensor& p, const Tensor& x) { return x * (1.0 - p); }},
          {"2 / p", [](const Tensor& p, const Tensor& x) { return x * (2 / p); }},
          {"remainder", [](const Tensor& p, const Tensor& x) { return x * (3.0 % (p + 2)); }},
          {"zeros_like", [](const Tensor& p,
                            const Tensor& x) { return x * torch::zeros_like(p).add_(p).mul_(x); }},
          {"ones_like",
           [](const Tensor& p, const Tensor& x) { return torch::ones_like(p).sub_(p).exp_() * x; }},
          {"full_like",
           [](const Tensor& p, const Tensor& x) {
             Tensor y = torch::full_like(p, 3);
             y.mul_(x);
             y.sigmoid_();
             return y * p;
           }},
          {"clone", [](const Tensor& p, const Tensor& x) { return p.clone().mul_(2).add_(x); }},
          {"clone, saved", [](const Tensor& p, const Tensor& x) { return p.clone().tanh_() * x; }},
          {"clone, twice",
           [](const Tensor& p, const Tensor& x) {
             Tensor y = p.clone();
             const Tensor z = y + x;
             y.mul_(p);
             return y + z;
           }},
          {"clone, zeroed",
           [](const Tensor& p, const Tensor& x) { return p.clone().zero_() + p * x; }},
          {"detached copy",
           [](const Tensor& p, const Tensor& x) { return p.detach().clone().add_(p).mul_(x); }},
      };
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [&](const MPU& mpu) {
      for (const auto& [name, use] : uses) {
        const Tensor w = leaf(numbers({5, 3}) + 2), p = marked(w, mpu),
                     x = leaf(numbers({5, 3}, 1)), u = leaf(x);
        const Tensor expected = use(w, x), actual = use(p, u);
        expect_close(actual, expected, name);
        expected.pow(2).sum().backward();
        actual.pow(2).sum().backward();
        expect_close(p.grad(), w.grad(), std::string(name) + ", gradient");
        expect_close(u.grad(), x.grad(), std::string(name) + ", gradient of x");
        expect_close(p, w, std::string(name) + ", parameter");
      }
      const Tensor p = marked(numbers({5, 3}), mpu);
      EXPECT_EQ((1 - p).sizes(), torch::IntArrayRef({5, 3}));  // as of all that a forward computes
      Tensor alias = p.alias();
      EXPECT_THAT(error_of([&] { alias.mul_(2); }), HasSubstr("in place"));
    });
  }
}

/// What an optimizer computes of parts and states, step by step as AdamW does; what was saved of it
/// for a backward pass, or viewed, is seen to be written as on one device.
TEST(MarkedParameters, WhatIsWrittenBesideTheGraphIsSeenToBeWritten) {
  const auto use = [](Tensor p, const Tensor& x) {
    std::vector<Tensor> seen;
    Tensor scale, view;
    {
      const torch::NoGradGuard no_grad;
      const Tensor square = torch::zeros_like(p).mul_(0.5).addcmul_(p, p, 0.25);
      scale = (square.sqrt() / 3).add_(1e-3);
      view = scale.t();
      p.addcdiv_(square, scale, -0.5);
      scale.mul_(p).add_(square, 2);
      seen = {square, scale, view, square.where(square > scale, p)};
    }
    const Tensor loss = (p * scale * x).sum();
    seen.push_back(torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0]);
    {
      const torch::NoGradGuard no_grad;
      scale.add_(1);
    }
    seen.push_back(view);
    EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("modified by an inplace operation"));
    return seen;
  };
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [&](const MPU& mpu) {
      const Tensor w = leaf(numbers({5, 3}) + 2), p = marked(w, mpu), x = leaf(numbers({5, 3}, 1));
      const std::vector<Tensor> actual = use(p, leaf(x)), expected = use(w, x);
      for (size_t i = 0; i < expected.size(); ++i) {
        expect_close(actual[i], expected[i], c10::str("value ", i));
      }
      expect_close(p, w, "parameter");
    });
  }
}

TEST(MarkedParameters, SetDataTakesItsPartOfAPlacedTensor) {
  on_ranks(3, [](const MPU& mpu) {
    Tensor p = marked(numbers({5, 3}), mpu), plain = numbers({2, 2});
    const Tensor x = placed(numbers({5, 3}, 2), mpu, 1);
    p.set_data(x * 2);
    expect_close(p, numbers({5, 3}, 2) * 2, "parameter");
    EXPECT_EQ(layout(p)->to_string(), layout_of(mpu, {5, 3}, 0)->to_string());
    EXPECT_TRUE(p.requires_grad());
    (p * 3).sum().backward();
    expect_close(p.grad(), torch::full({5, 3}, 3.0, torch::kDouble), "gradient");
    plain.set_data(x * 3);
    EXPECT_FALSE(is_placed(plain));
    expect_close(plain, numbers({5, 3}, 2) * 3, "an ordinary tensor");
    EXPECT_THAT(error_of([&] {
                  p.set_data(placed(numbers({3, 5}), mpu, 0));
                }),
                HasSubstr("keeps its shape"));
  });
}

}  // namespace
}  // namespace oslo
