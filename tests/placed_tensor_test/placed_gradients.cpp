// Gradients that arrive placed at an ordinary tensor which was computed from cut values: behind it
// the graph goes on with local tensors.
#include "tests/models/own_functions.h"
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using models::own::LinearFunction;

/// What is whole, of a weight whose rows are cut: a sum of all ranks; gathered; taken by hand.
std::vector<std::function<Tensor(const Tensor&, const Tensor&)>> whole_results() {
  return {
      [](const Tensor& x, const Tensor& w) { return torch::tanh(x.mm(w) + 0.3); },
      [](const Tensor& x, const Tensor& w) { return x.mm(std::get<0>(torch::sort(w, 0))); },
      [](const Tensor& x, const Tensor& w) {
        return full_tensor(torch::cat({w, w.flip(0)}, 0)).t().mm(torch::cat({x, x}, 1).t()).t();
      },
      [](const Tensor& x, const Tensor& w) {
        return full_tensor(w * 2).relu().slice(0, 0, 5) * x.sum(1, true);
      },
  };
}

struct Weights {
  Tensor x, w, v, b;
};

/// `use` makes a scalar of what is whole and of a weight v [7, 4] whose columns are cut.
void expect_gradients(const std::function<void(Tensor h, const Weights&)>& use) {
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [&](const MPU& mpu) {
      for (const auto& result : whole_results()) {
        const Weights on_one{leaf(numbers({5, 6})), leaf(numbers({6, 4}, 2)),
                             leaf(numbers({7, 4}, 3)), leaf(numbers({7}, 4))};
        const Weights cut{leaf(on_one.x), marked(on_one.w, mpu, 0), marked(on_one.v, mpu, 1),
                          leaf(on_one.b)};
        use(result(on_one.x, on_one.w), on_one);
        const Tensor h = result(cut.x, cut.w);
        ASSERT_FALSE(is_placed(h));
        use(h, cut);
        expect_close(cut.x.grad(), on_one.x.grad(), "x");
        expect_close(cut.w.grad(), on_one.w.grad(), "w");
        expect_close(cut.v.grad(), on_one.v.grad(), "v");
        expect_close(cut.b.grad(), on_one.b.grad(), "b");
      }
    });
  }
}

TEST(PlacedGradients, OfAUsersFunction) {
  expect_gradients([](Tensor h, const Weights& weights) {
    LinearFunction::apply(h, weights.v, weights.b).pow(2).sum().backward();
  });
}

TEST(PlacedGradients, OfAHook) {
  expect_gradients([](Tensor h, const Weights& weights) {
    h.register_hook([&](const Tensor& gradient) { return gradient * weights.v.detach()[0]; });
    torch::addmm(weights.b, h, weights.v.t()).pow(2).sum().backward();
  });
}

TEST(PlacedGradients, HandedToBackward) {
  expect_gradients([](Tensor h, const Weights& weights) {
    torch::addmm(weights.b, h, weights.v.t()).pow(2).sum().backward({}, /*retain_graph=*/true);
    h.backward(weights.v.detach().slice(0, 0, 5) * 2);
  });
}

TEST(PlacedGradients, OfGradients) {
  expect_gradients([](Tensor h, const Weights& weights) {
    const Tensor y = LinearFunction::apply(h, weights.v, weights.b).pow(2).sum();
    const Tensor g = torch::autograd::grad({y}, {weights.x}, {}, true, /*create_graph=*/true)[0];
    (g.pow(2).sum() + y).backward();
  });
}

}  // namespace
}  // namespace oslo
