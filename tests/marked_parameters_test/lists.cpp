// Parameters in lists: losses that broadcast, _foreach_ operators, loss scaling, LBFGS.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <limits>

#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::HasSubstr;

/// A mark on parts of 2+2+1, 1+1+0 or 5+0+0 rows.
Tensor marked_by_units(const Tensor& whole, const MPU& mpu, int64_t unit) {
  Tensor parameter = leaf(whole);
  const LayoutPtr layout = std::make_shared<Layout>(
      make_layout(mpu.tensor_mesh(), {Placement::shard(0, 1, unit)}, whole.sizes()));
  mark_parameter(parameter, layout, "w");
  return parameter;
}

// A definition reads the sizes of tensors in lists, too: F::mse_loss broadcasts by one.
TEST(MarkedParameters, LossesOfAParameterAreThoseOfTheWhole) {
  on_ranks(3, [](const MPU& mpu) {
    namespace F = torch::nn::functional;
    for (const auto& [rows, unit] :
         std::vector<std::pair<int64_t, int64_t>>{{5, 1}, {2, 1}, {5, 5}}) {
      const Tensor whole = numbers({rows, 5}), target = numbers({rows, 5}, 2.0);
      const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> losses = {
          {"mse_loss", [&](const Tensor& t) { return F::mse_loss(t, target); }},
          {"mse_loss of it", [&](const Tensor& t) { return F::mse_loss(target, t); }},
          {"l1_loss", [&](const Tensor& t) { return F::l1_loss(t, target); }},
          {"smooth_l1_loss", [&](const Tensor& t) { return F::smooth_l1_loss(t, target); }},
          {"column_stack",
           [&](const Tensor& t) {
             return torch::column_stack({t, target});
           }},
          {"multi_dot",
           [&](const Tensor& t) {
             return torch::linalg_multi_dot({t, t.t(), t});
           }},
          {"meshgrid",
           [&](const Tensor& t) {
             return torch::meshgrid({t.select(1, 0), t.select(1, 1)}, "ij")[0];
           }},
      };
      for (const auto& [name, loss] : losses) {
        const Tensor w = leaf(whole), p = marked_by_units(whole, mpu, unit);
        const Tensor actual = loss(p), expected = loss(w);
        ASSERT_EQ(actual.sizes(), expected.sizes()) << name;
        expect_close(actual, expected, name);
        actual.pow(2).sum().backward();
        expected.pow(2).sum().backward();
        expect_close(p.grad(), w.grad(), std::string(name) + ", gradient");
      }
    }
  });
}

// An optimizer that steps lists at once, as Python's do; a whole bias among parts.
TEST(MarkedParameters, ListsAreSteppedAsOneByOne) {
  on_ranks(3, [](const MPU& mpu) {
    const auto step = [](const Tensor& weight, const Tensor& bias) {
      const std::vector<Tensor> all{weight, bias}, gradients{weight.grad(), bias.grad()};
      const std::vector<Tensor> mean{torch::zeros_like(weight), torch::zeros_like(bias)};
      const std::vector<Tensor> square{torch::zeros_like(weight), torch::zeros_like(bias)};
      const torch::NoGradGuard no_grad;
      torch::_foreach_mul_(all, 0.99);
      torch::_foreach_lerp_(mean, gradients, 0.1);
      torch::_foreach_mul_(square, 0.9);
      torch::_foreach_addcmul_(square, gradients, gradients, 0.1);
      std::vector<Tensor> divisor = torch::_foreach_sqrt(square);
      torch::_foreach_add_(divisor, 1e-3);
      torch::_foreach_addcdiv_(all, mean, divisor, -0.5);
      torch::_foreach_copy_(mean, gradients);
      const std::vector<Tensor> norms = torch::_foreach_norm(all, 2);
      return torch::stack({full_tensor(norms[0]), full_tensor(norms[1])});
    };
    const Tensor x = numbers({4, 3}, 1.0);
    const Tensor w = leaf(numbers({5, 3})), b = leaf(numbers({5}, 0.5));
    const Tensor p = marked(numbers({5, 3}), mpu), c = leaf(numbers({5}, 0.5));
    torch::nn::functional::linear(x, w, b).pow(2).sum().backward();
    torch::nn::functional::linear(x, p, c).pow(2).sum().backward();
    const auto before = mpu.tensor_group()->ledger().total().calls;
    const Tensor norms = step(p, c), expected = step(w, b);
    expect_close(norms, expected, "norms");
    EXPECT_EQ(mpu.tensor_group()->ledger().total().calls - before, 1) << "the norm of the weight";
    expect_close(p, w, "the weight");
    expect_close(c, b, "the bias");
  });
}

// A gradient scaler: what is not finite in one rank's part stops the step on all ranks.
TEST(MarkedParameters, WhatOneRankFindsNotFiniteAllHaveFound) {
  on_ranks(3, [](const MPU& mpu) {
    for (const int64_t row : {-1, 0, 3, 4}) {
      Tensor whole = numbers({5, 3}).to(torch::kFloat), other = numbers({5}).to(torch::kFloat);
      if (row >= 0) whole[row][1] = std::numeric_limits<float>::infinity();
      const Tensor p = marked(whole, mpu), cut = placed(other, mpu, 0);
      const Tensor plain = other.clone(), expected = whole.clone();
      p.requires_grad_(false);
      const Tensor factor = torch::full({1}, 0.25);
      Tensor found = torch::zeros({1}), expected_found = torch::zeros({1});
      torch::_amp_foreach_non_finite_check_and_unscale_({p, cut, plain}, found, factor);
      torch::_amp_foreach_non_finite_check_and_unscale_({expected}, expected_found, factor);
      EXPECT_EQ(found.item<float>(), row >= 0 ? 1 : 0);
      EXPECT_EQ(found.item<float>(), expected_found.item<float>());
      expect_close(p, expected, "the parameter's");
      expect_close(cut, other * 0.25, "a cut one");
      expect_close(plain, other * 0.25, "a whole one");
    }
  });
}

// It slices a flat step by the parameters' numel(), which is that of the parts.
TEST(MarkedParameters, LbfgsIsRefusedByName) {
  for (const int64_t unit : {1, 5}) {  // with whole units of 5 rows one rank holds everything
    on_ranks(3, [&](const MPU& mpu) {
      const Tensor p = marked_by_units(numbers({5, 3}), mpu, unit), bias = leaf(numbers({5}, 0.5));
      const Tensor x = numbers({4, 3}, 1.0);
      torch::optim::LBFGS optimizer(std::vector<Tensor>{bias, p});
      const std::string error = error_of([&] {
        optimizer.step([&] {
          optimizer.zero_grad();
          Tensor loss = torch::nn::functional::linear(x, p, bias).pow(2).sum();
          loss.backward();
          return full_tensor(loss);
        });
      });
      EXPECT_THAT(error, HasSubstr("torch::optim::LBFGS"));
      EXPECT_THAT(error, HasSubstr("[5, 3]"));
    });
  }
}

// Whether an out= tensor is a part is said by its mark, on every rank alike: its sizes are those of
// rank 0's part (2 rows of 5), of the whole, or of what one rank holds alone.
TEST(MarkedParameters, OutTensorsArePartsByTheirMark) {
  on_ranks(3, [](const MPU& mpu) {
    const torch::NoGradGuard no_grad;
    for (const int64_t unit : {1, 5}) {
      const Tensor whole = numbers({5, 3}), p = marked_by_units(whole, mpu, unit);
      for (const int64_t rows : {0, 1, 2, 5}) {
        Tensor plain = torch::zeros({rows, 3}, torch::kDouble);
        torch::mul_out(plain, p, p);
        expect_close(plain, whole * whole, "out of the whole's sizes");
        const Tensor other = torch::ones({rows, 3}, torch::kDouble);
        if (rows != 5) {
          EXPECT_THAT(error_of([&] { torch::mul_out(const_cast<Tensor&>(p), other, other); }),
                      HasSubstr("which is a value or parameter of a parallel model"));
          continue;
        }
        const Tensor own = marked_by_units(whole, mpu, unit);
        torch::mul_out(const_cast<Tensor&>(own), other, other);
        expect_close(own, other, "a parameter as out");
      }
      Tensor out = torch::zeros_like(p);  // an optimizer's state
      torch::mul_out(out, p, p);
      expect_close(out, whole * whole, "out of parts");
    }
  });
}

// The gradient of sgn is zeros without memory: the second one of abs, and what a parameter gets of
// it, which is averaged over ranks by hand.
TEST(MarkedParameters, GradientsHaveMemory) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor p = marked_by_units(numbers({5, 3}), mpu, 1);
    p.sgn().sum().backward();
    ASSERT_TRUE(p.grad().defined());
    EXPECT_FALSE(p.grad()._is_zerotensor());
    expect_close(p.grad(), torch::zeros({5, 3}, torch::kDouble), "gradient");
  });
}

// C++ compares slices with this rank's sizes before any operator runs. Where they are all of a part
// that is seen and refused; views have the whole's sizes and do what is meant.
TEST(MarkedParameters, SlicesInCppAreWrittenThroughViews) {
  using torch::indexing::Slice;
  on_ranks(2, [](const MPU& mpu) {
    const torch::NoGradGuard no_grad;
    const Tensor whole = numbers({8, 3}), values = numbers({4, 3}, 2.0);
    Tensor w = leaf(whole);
    const Tensor p = marked(whole, mpu, 0);
    const char* const refused = "index_put_ of parallel parameter w by slices";
    EXPECT_THAT(error_of([&] { const_cast<Tensor&>(p).index_put_({Slice(0, 4)}, values); }),
                HasSubstr(refused));
    EXPECT_THAT(error_of([&] { const_cast<Tensor&>(p).index_put_({Slice(0, 4)}, 0.5); }),
                HasSubstr(refused));
    EXPECT_THAT(error_of([&] { p.index({5}); }), HasSubstr("out of bounds"));
    expect_close(p, w, "unchanged");
    w.index_put_({Slice(0, 4)}, values);
    p.slice(0, 0, 4).copy_(values);
    expect_close(p, w, "written");
    w.index_put_({Slice(2, 7)}, 0.5);
    p.slice(0, 2, 7).fill_(0.5);
    expect_close(p, w, "filled");
    expect_close(p.select(0, 5), w.index({5}), "row 5");
    p.copy_(local_tensor(p) * 1.0);  // a part for a part
    expect_close(p, w, "as it was");
  });
}

// A tangent beside cut values would be lost in collectives.
TEST(MarkedParameters, ForwardModeDerivativesAreRefused) {
  const uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
  const Tensor x = numbers({5, 3});
  const Tensor dual = at::_make_dual(x, x, static_cast<int64_t>(level));
  on_ranks(2, [&](const MPU& mpu) {
    const Tensor p = marked(numbers({8, 3}), mpu, 0);
    const char* const refused = "forward-mode derivatives (at::_make_dual)";
    EXPECT_THAT(error_of([&] { at::_make_dual(p, numbers({8, 3}), 0); }), HasSubstr(refused));
    EXPECT_THAT(error_of([&] { torch::linear(dual, p); }), HasSubstr(refused));
    EXPECT_THAT(error_of([&] {
                  torch::mul(placed(numbers({5, 3}), mpu, 1), dual);
                }),
                HasSubstr(refused));
  });
  torch::autograd::ForwardADLevel::release_idx(level);
}

}  // namespace
}  // namespace oslo
