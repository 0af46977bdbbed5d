// A guess that a GeLU follows changes no number where it does not, or not at once; and what a
// kernel takes past autograd is there again where somebody looks.
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

using Use = std::function<Tensor(Mlp&, const Tensor& x)>;

/// A product and what comes of it.
Tensor usual(Mlp& model, const Tensor& x) {
  return linear(model->down_one, gelu_tanh(linear(model->up_one, x)));
}

/// `use` of a model cut over two ranks, after `usual` has shown that a GeLU follows, and of a plain
/// one: results, gradients of the input and of the weights. It runs twice: what it teaches counts
/// the second time.
void expect_as_plain(const Use& use) {
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    auto plain = make_seeded(7, [] { return Mlp(); }), model = make_seeded(7, [] { return Mlp(); });
    plain->to(torch::kDouble);
    model->to(torch::kDouble);
    initialize(model, Config::parse(fused_config(2)), in(world));
    const Tensor numbers = make_seeded(3, [] { return torch::randn({3, 5, 6}, torch::kDouble); });
    for (const Use& way : {Use(usual), use, use}) {
      const Tensor x = numbers.clone().requires_grad_(), other = numbers.clone().requires_grad_();
      const Tensor y = way(model, x), expected = way(plain, other);
      parity::expect_close(full_tensor(y.detach()), expected.detach(), "result");
      y.square().mean().backward();
      expected.square().mean().backward();
      parity::expect_close(x.grad(), other.grad(), "gradient of the input");
      parity::expect_gradients(*model, *plain);
    }
  });
}

TEST(Guess, TheGeluOfAnotherValue) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    const Tensor sum = linear(model->up_one, x);
    return linear(model->down_one, gelu_tanh(sum + 1)) + linear(model->down_one, gelu_tanh(sum));
  });
}

TEST(Guess, NoGeluOrAnotherOne) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    return linear(model->down_one, torch::relu(linear(model->up_one, x)));
  });
  expect_as_plain([](Mlp& model, const Tensor& x) {
    return linear(model->down_one, torch::gelu(linear(model->up_one, x)));
  });
}

TEST(Guess, AValueThatWasWritten) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    Tensor sum = linear(model->up_one, x);
    sum.mul_(2);
    return linear(model->down_one, gelu_tanh(sum));
  });
  expect_as_plain([](Mlp& model, const Tensor& x) {
    const Tensor sum = linear(model->up_one, x);
    {
      const torch::NoGradGuard guard;
      sum.detach().mul_(2);
    }
    return linear(model->down_one, gelu_tanh(sum));
  });
}

TEST(Guess, AViewThatWasWritten) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    const Tensor sum = linear(model->up_one, x);
    sum.view({15, 10}).mul_(2);
    return linear(model->down_one, gelu_tanh(sum));
  });
  expect_as_plain([](Mlp& model, const Tensor& x) {
    Tensor sum = linear(model->up_one, x);
    const Tensor rows = sum.view({15, 10});
    sum.narrow(0, 1, 1).mul_(2);
    return linear(model->down_one, gelu_tanh(rows));
  });
}

/// All elements in another order, and some of them.
TEST(Guess, TheGeluOfAnotherView) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    const Tensor sum = linear(model->up_one, x);
    return linear(model->down_one, gelu_tanh(sum.transpose(0, 1)));
  });
  expect_as_plain([](Mlp& model, const Tensor& x) {
    const Tensor sum = linear(model->up_one, x);
    return linear(model->down_one, gelu_tanh(sum.narrow(0, 0, 1)));
  });
}

TEST(Guess, ASumThatIsUsedElsewhereToo) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    const Tensor sum = on_rows(model->up_one, x);
    const Tensor activation = gelu_tanh(sum);
    return on_rows(model->down_one, activation) + linear(model->down_two, sum) +
           linear(model->down_three, activation.view({15, 10})).view(x.sizes());
  });
}

TEST(Guess, AnotherProductBetween) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    const Tensor gate = linear(model->up_one, x), up = linear(model->up_two, x);
    return linear(model->down_one, gelu_tanh(gate) * up);
  });
}

TEST(Guess, TheSameGeluTwiceAndInTwoProducts) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    const Tensor sum = linear(model->up_one, x);
    const Tensor once = gelu_tanh(sum), again = gelu_tanh(sum);
    return linear(model->down_one, once) + linear(model->down_two, once) +
           linear(model->down_three, again);
  });
}

TEST(Guess, ABatchWithoutRows) {
  expect_as_plain([](Mlp& model, const Tensor& x) {
    return usual(model, x) + usual(model, x.slice(0, 0, 0)).sum();
  });
}

/// Of one rank, which talks to nobody.
TEST(Guess, IsMadeAfterTheFirstGeluAndDroppedWhereItWasWrong) {
  Mlp model;
  InitializeOptions how;
  how.world = World::fake(0, 2);
  const ParallelModel parallel = initialize(model, Config::parse(fused_config(2)), how);
  const Tensor x = torch::ones({2, 6});
  const auto kernels_of = [&](const Use& use) {
    kernel_calls().clear();
    use(model, x);
    return kernel_calls().gelu.load();
  };
  const Use without = [](Mlp& each, const Tensor& input) {
    const Tensor sum = linear(each->up_one, input);
    return linear(each->up_three, input);
  };
  EXPECT_EQ(kernels_of(usual), 0) << "nobody knows yet";
  EXPECT_EQ(kernels_of(usual), 1);
  EXPECT_EQ(kernels_of(usual), 1);
  EXPECT_EQ(kernels_of(without), 1) << "the guess that was wrong";
  EXPECT_EQ(kernels_of(without), 0);
  EXPECT_EQ(kernels_of(usual), 0);
  EXPECT_EQ(kernels_of(usual), 1);
  {
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(kernels_of(usual), 1);
  }
  const Use on_more_dimensions = [](Mlp& each, const Tensor& input) {
    return gelu_tanh(each->up_three(input.view({1, 2, 6})));
  };
  kernels_of(on_more_dimensions);
  EXPECT_EQ(kernels_of(on_more_dimensions), 0) << "the bias comes after the product";
}

}  // namespace
}  // namespace oslo::test
