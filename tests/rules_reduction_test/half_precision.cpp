// Half precision over a cut: statistics, norms and factors are those of one device, which computes
// in float and rounds once. operator_table_test goes through all operators; these are large.
#include <torch/nn/utils/clip_grad.h>

#include "parallelizers/placement/carrier/mark.h"
#include "tests/support/rule_case.h"

namespace rule_case {
namespace {

constexpr std::array<at::ScalarType, 2> kHalves{at::kHalf, at::kBFloat16};

double rounding_of(at::ScalarType type) {
  return type == at::kHalf ? 0x1p-11 : 0x1p-8;
}

void expect_near(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  const at::Tensor wide = expected.to(at::kDouble);
  const double off = (actual.to(at::kDouble) - wide).abs().max().item<double>();
  EXPECT_GT(wide.abs().max().item<double>(), 0) << what;
  EXPECT_LE(off, 4 * rounding_of(expected.scalar_type()) * wide.abs().max().item<double>()) << what;
}

/// The sum of 4,096 squares of deviation 4 is near 65,536, which half precision does not have.
TEST(RulesHalfPrecision, LayerNormOfManyFeatures) {
  at::manual_seed(3);
  for (const at::ScalarType type : kHalves) {
    const at::Tensor x = (at::randn({5, 4096}) * 4).to(type);
    const at::Tensor weight = at::randn({4096}).to(type), upstream = at::randn({5, 4096}).to(type);
    const auto run = [&](const at::Tensor& given, const at::Tensor& scale) {
      return at::layer_norm(given, {4096}, scale);
    };
    const at::Tensor leaf = x.clone().requires_grad_(), scale = weight.clone().requires_grad_();
    const at::Tensor expected = run(leaf, scale);
    expected.backward(upstream);
    on_ranks({2}, [&](const oslo::MeshPtr& mesh) {
      const at::Tensor own = x.clone().requires_grad_(),
                       own_scale = weight.clone().requires_grad_();
      const at::Tensor y =
          run(oslo::distribute(own, mesh, {cut(1)}), oslo::distribute(own_scale, mesh, {cut(0)}));
      y.backward(upstream);
      expect_near(oslo::full_tensor(y).detach(), expected.detach(), "result");
      expect_near(own.grad(), leaf.grad(), "gradient");
      expect_near(own_scale.grad(), scale.grad(), "gradient of the weight");
    });
  }
}

/// LibTorch's own clipping, of a gradient whose squares are beyond the range, or below it.
TEST(RulesHalfPrecision, LibTorchClipsCutGradients) {
  for (const at::ScalarType type : kHalves) {
    for (const double each : {1e-5, 1e-3, 100.0, 700.0}) {
      const at::Tensor gradient = at::full({4097}, each).to(type);
      const at::Tensor plain = at::zeros({4097}, type).requires_grad_();
      plain.mutable_grad() = gradient.clone();
      const double expected = torch::nn::utils::clip_grad_norm_(plain, each);
      EXPECT_NEAR(expected, each * std::sqrt(4097.0), 0.02 * expected);
      on_ranks({3}, [&](const oslo::MeshPtr& mesh) {
        at::Tensor parameter = at::zeros({4097}, type).requires_grad_();
        const auto layout =
            std::make_shared<oslo::Layout>(oslo::make_layout(mesh, {cut(0)}, parameter.sizes()));
        oslo::mark_parameter(parameter, layout, "w");
        (parameter * gradient).sum().backward();
        const double norm = torch::nn::utils::clip_grad_norm_(parameter, each);
        EXPECT_NEAR(norm, expected, 4 * rounding_of(type) * expected);
        expect_near(oslo::full_tensor(parameter.grad()), plain.grad(), c10::str("of ", each));
      });
    }
  }
}

/// The losses of 70,001 rows add up to more than float16 has; their mean is near 2.
TEST(RulesHalfPrecision, MeanLossesOfManyRows) {
  at::manual_seed(3);
  const at::Tensor logits = at::randn({70001, 7}), target = at::randint(7, {70001}, at::kLong);
  for (const at::ScalarType type : kHalves) {
    const at::Tensor x = logits.to(type);
    const std::vector<std::function<at::Tensor(const at::Tensor&)>> losses{
        [&](const at::Tensor& t) { return at::cross_entropy_loss(t, target); },
        [&](const at::Tensor& t) { return at::nll_loss_nd(t.abs(), target); },
        [&](const at::Tensor& t) { return at::smooth_l1_loss(t, x + 1); }};
    on_ranks({2}, [&](const oslo::MeshPtr& mesh) {
      for (size_t i = 0; i < losses.size(); ++i) {
        for (const int64_t dim : {0, 1}) {
          const at::Tensor loss = losses[i](oslo::distribute(x, mesh, {cut(dim)}));
          expect_near(oslo::full_tensor(loss), losses[i](x.to(at::kDouble)).to(type),
                      c10::str("loss ", i, " cut on ", dim));
        }
      }
    });
  }
}

/// What ranks before add up to is not rounded on its way, nor is a bag that several hold.
TEST(RulesHalfPrecision, ScansAndBags) {
  const at::Tensor steps =
      at::tensor({30000., 30000., 30000., -30000., -30000., -15000.}, at::kDouble).to(at::kHalf);
  const at::Tensor factors =
      at::tensor({300., 400., 0.5, 0.25, 0.125, 3.}, at::kDouble).to(at::kHalf);
  const at::Tensor table = at::stack({steps, factors}, 1);
  const at::Tensor indices = at::arange(6), offsets = at::zeros({1}, at::kLong);
  const auto bag = [&](const at::Tensor& rows, int64_t mode) {
    return std::get<0>(at::embedding_bag(rows, indices, offsets, false, mode));
  };
  on_ranks({2}, [&](const oslo::MeshPtr& mesh) {
    const auto part = [&](const at::Tensor& whole) {
      return oslo::distribute(whole, mesh, {cut(0)});
    };
    const at::Tensor sums = oslo::full_tensor(part(steps).cumsum(0));
    EXPECT_TRUE(at::equal(sums, steps.cumsum(0))) << sums;
    const at::Tensor products = oslo::full_tensor(part(factors).cumprod(0));
    EXPECT_TRUE(at::equal(products, factors.cumprod(0))) << products;
    for (const int64_t mode : {0, 1}) {
      expect_near(oslo::full_tensor(bag(part(table), mode)),
                  bag(table.to(at::kDouble), mode).to(at::kHalf), c10::str("bag of mode ", mode));
    }
  });
}

/// Zeros take another way backwards.
TEST(RulesHalfPrecision, TheGradientOfAProductWithZeros) {
  const at::Tensor factors =
      at::tensor({1.5, -2., 0.5, 0., 4., 0.25, 3.}, at::kDouble).to(at::kHalf);
  const at::Tensor upstream = at::arange(1, 8).to(at::kHalf);
  const auto gradient_of = [&](at::ScalarType type, const oslo::MeshPtr& mesh) {
    const at::Tensor leaf = factors.to(type, false, true).set_requires_grad(true);
    const at::Tensor x = mesh ? oslo::distribute(leaf, mesh, {cut(0)}) : leaf;
    x.cumprod(0).mul(upstream.to(type)).sum().backward();
    return leaf.grad();
  };
  for (const int ranks : {2, 3}) {
    on_ranks({ranks}, [&](const oslo::MeshPtr& mesh) {
      expect_near(gradient_of(at::kHalf, mesh), gradient_of(at::kDouble, nullptr).to(at::kHalf),
                  "gradient");
    });
  }
}

/// Factors bring products back into the range, which those leave in between.
TEST(RulesHalfPrecision, FactorsComeBeforeRounding) {
  at::manual_seed(3);
  const auto given = [](at::IntArrayRef sizes) {
    return (at::rand(sizes) * 90 + 60).to(at::kHalf);
  };
  const at::Tensor self = given({5, 6}), left = given({3, 5, 40}), right = given({3, 40, 6});
  const at::Tensor selves = given({3, 5, 6}), vector = given({40}), bias = given({5});
  using Run = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
  const std::vector<std::pair<std::string, Run>> sums{
      {"addmm", [&](auto& x, auto& y) { return at::addmm(self, x[1], y[1], 0.5, 0.01); }},
      {"addmm without self",
       [&](auto& x, auto& y) { return at::addmm(self, x[1], y[1], 0, 0.01); }},
      {"addmm_", [&](auto& x, auto& y) { return self.clone().addmm_(x[1], y[1], 0.5, 0.01); }},
      {"baddbmm", [&](auto& x, auto& y) { return at::baddbmm(selves, x, y, 0.5, 0.01); }},
      {"addbmm", [&](auto& x, auto& y) { return at::addbmm(self, x, y, 0.5, 0.01); }},
      {"addmv", [&](auto& x, auto&) { return at::addmv(bias, x[1], vector, 0.5, 0.01); }},
  };
  on_ranks({2}, [&](const oslo::MeshPtr& mesh) {
    for (const auto& [name, run] : sums) {
      for (const auto& [of_left, of_right] :
           std::vector<std::array<int64_t, 2>>{{0, 0}, {1, -1}, {2, 1}, {2, -1}, {-1, 2}}) {
        const auto place = [&](const at::Tensor& whole, int64_t dim) {
          return dim < 0 ? whole : oslo::distribute(whole, mesh, {cut(dim)});
        };
        const at::Tensor y = run(place(left, of_left), place(right, of_right));
        expect_near(oslo::full_tensor(y), run(left, right),
                    c10::str(name, " of operands cut on ", of_left, " and ", of_right));
      }
    }
  });
}

}  // namespace
}  // namespace rule_case
