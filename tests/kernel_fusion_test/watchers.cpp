// What kernels compute past autograd is there again where somebody looks: hooks, retained
// gradients, autograd::grad, gradients of gradients.
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <functional>

#include "tests/kernel_fusion_test/counted.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using torch::Tensor;

Tensor loss_of(Mlp& model, const Tensor& x) {
  return model->forward(x).square().mean();
}

/// `body(model, x)` on a cut model that has its gradients, and its guesses, and on a plain one.
/// Compares what it returns, and `.grad` afterwards.
using Body = std::function<std::vector<Tensor>(Mlp&, const Tensor& x)>;
void expect_as_plain(const Body& body) {
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    auto plain = make_seeded(7, [] { return Mlp(); }), model = make_seeded(7, [] { return Mlp(); });
    plain->to(torch::kDouble);
    model->to(torch::kDouble);
    initialize(model, Config::parse(fused_config(2)), in(world));
    const Tensor x = make_seeded(3, [] { return torch::randn({3, 5, 6}, torch::kDouble); });
    for (Mlp* each : {&model, &plain}) loss_of(*each, x).backward();
    const auto found = body(model, x), expected = body(plain, x);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      parity::expect_close(full_tensor(found[i].detach()), expected[i].detach(),
                           "result " + std::to_string(i));
    }
    parity::expect_gradients(*model, *plain);
  });
}

TEST(Watchers, HooksOfParametersSeeAndChangeTheirGradients) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    std::vector<Tensor> seen;
    for (const Tensor& parameter : model->parameters()) {
      parameter.register_hook([&seen](const Tensor& gradient) {
        seen.push_back(full_tensor(gradient.detach()));
        return gradient * 3;
      });
    }
    loss_of(model, x).backward();
    std::vector<Tensor> sums;
    for (const Tensor& each : seen) sums.push_back(each.abs().sum());
    EXPECT_EQ(seen.size(), 16u);
    Tensor all = torch::stack(sums).sum();  // in whatever order the hooks ran
    return std::vector<Tensor>{all};
  });
}

TEST(Watchers, TheGradientOfTheGeluAndOfTheSumBeforeIt) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    const Tensor sum = linear(model->up_one, x), activation = gelu_tanh(sum);
    sum.retain_grad();
    activation.retain_grad();
    linear(model->down_one, activation).square().mean().backward();
    return std::vector<Tensor>{sum.grad(), activation.grad()};
  });
}

TEST(Watchers, TheGradientOfTheGeluInAnotherShape) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    const Tensor rows = gelu_tanh(on_rows(model->up_four, x)).view({15, 10});
    rows.retain_grad();
    linear(model->down_four, rows).square().mean().backward();
    return std::vector<Tensor>{rows.grad()};
  });
}

TEST(Watchers, GradientsThatAreAskedForAreNotAddedUp) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    return torch::autograd::grad(
        {loss_of(model, x)}, {model->up_one->weight, model->down_one->weight, model->up_two->bias,
                              model->down_two->weight});
  });
}

TEST(Watchers, BackwardForSomeParametersAlone) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    loss_of(model, x).backward({}, c10::nullopt, false,
                               std::vector<Tensor>{model->up_one->weight, model->down_two->weight});
    return std::vector<Tensor>{};
  });
}

TEST(Watchers, GradientsOfGradients) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    const Tensor input = x.clone().requires_grad_();
    const auto first = torch::autograd::grad({loss_of(model, input)}, {input}, {}, true, true);
    first[0].square().sum().backward();
    return std::vector<Tensor>{first[0], input.grad()};
  });
}

TEST(Watchers, AGraphThatIsKeptRunsTwice) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    const Tensor loss = loss_of(model, x);
    loss.backward({}, true);
    loss.backward();
    return std::vector<Tensor>{};
  });
}

TEST(Watchers, AnInputThatWasWrittenIsNamed) {
  Mlp model;
  InitializeOptions how;
  how.world = World::fake(0, 2);
  const ParallelModel parallel = initialize(model, Config::parse(fused_config(2)), how);
  Tensor x = torch::ones({2, 6});
  const Tensor y = linear(model->up_one, x);
  x.add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

}  // namespace
}  // namespace oslo::test
