// Reductions along the cut, beside it, and on two axes.
#include <limits>

#include "tests/rules_reduction_test/rules_reduction.h"
#include "tests/support/rule_case.h"

namespace rule_case {
namespace {

/// Random numbers, the second row and an element of the last infinite.
at::Tensor infinite(at::IntArrayRef sizes) {
  at::Tensor numbers = random(sizes, {}).whole.clone();
  numbers[1].fill_(std::numeric_limits<double>::infinity());
  numbers[-1][0].fill_(std::numeric_limits<double>::infinity());
  return numbers;
}

std::vector<Case> reduction_cases() {
  const auto x = [] { return random({5, 3, 2}, {cut(0)}); };
  return {
      one(
          "sum of all", x(), [](const auto& t) { return t.sum(); }, 0, 1),
      one(
          "sum beside the cut", x(), [](const auto& t) { return t.sum(-1); }, 0, 0),
      one(
          "sum along the cut, kept", x(),
          [](const auto& t) {
            return t.sum(at::IntArrayRef({0, 2}), true);
          },
          0, 1),
      one(
          "sum in another type", x(),
          [](const auto& t) { return t.sum(at::IntArrayRef({0}), false, at::kFloat); }, 0, 1),
      one(
          "mean of all", x(), [](const auto& t) { return t.mean(); }, 0, 1),
      one(
          "mean along the cut", x(), [](const auto& t) { return t.mean({0}, true); }, 0, 1),
      one(
          "mean beside the cut", x(),
          [](const auto& t) {
            return t.mean({1, 2});
          },
          0, 0),
      one(
          "mean, an empty rank", random({1, 3}, {cut(0)}), [](const auto& t) { return t.mean(); },
          0, 1),
      one(
          "amax beside the cut", x(), [](const auto& t) { return t.amax(1, true); }, 0, 0),
      one(
          "amax beside the cut, an empty rank", random({1, 3}, {cut(0)}),
          [](const auto& t) { return t.amax(1); }, 0, 0),
      one(
          "amax along the cut without gradient", x(),
          [](const auto& t) { return t.detach().amax(0); }, 0, 1),
      one(
          "amin of all without gradient", x(), [](const auto& t) { return t.detach().min(); }, 0,
          1),
      one(
          "amax along the cut with a gradient", x(), [](const auto& t) { return t.amax({0}); }, 0,
          3),
      one(
          "min of all with a gradient", x(), [](const auto& t) { return t.min(); }, 0, 3),
      one(
          "amax of equals on all ranks: all of them have a share in the gradient",
          {at::ones({7, 3}, at::kDouble), {cut(0)}},
          [](const auto& t) {
            return t.amax({0, 1}, true);
          },
          0, 3),
      one(
          "amin of infinite ones", {infinite({7, 3}), {cut(0)}},
          [](const auto& t) { return t.amin({0}); }, 0, 3),
      one(
          "max of all, an empty rank: gathered", random({1, 3}, {cut(0)}),
          [](const auto& t) { return t.detach().max(); }, 1),
      one(
          "max with index beside the cut", x(), [](const auto& t) { return std::get<0>(t.max(1)); },
          0, 0),
      one(
          "min with index along the cut: gathered", x(),
          [](const auto& t) { return std::get<0>(t.min(0, true)); }, 1),
      one(
          "norm of all", x(), [](const auto& t) { return t.norm(); }, 0, 1),
      one(
          "norm 3 along the cut", x(), [](const auto& t) { return t.norm(3, {0}, true); }, 0, 1),
      one(
          "norm beside the cut", x(),
          [](const auto& t) {
            return t.norm(2, {1, 2}, false);
          },
          0, 0),
      one(
          "norm of nothing has a zero gradient", {at::zeros({5, 2}, at::kDouble), {cut(0)}},
          [](const auto& t) { return t.norm(2, {0}, false); }, 0, 1),
      one(
          "largest norm without gradient", x(),
          [](const auto& t) { return t.detach().norm(std::numeric_limits<double>::infinity()); }, 0,
          1),
      one(
          "vector norm in another type", x(),
          [](const auto& t) {
            return at::linalg_vector_norm(t.to(at::kFloat), 2, at::IntArrayRef({0}), false,
                                          at::kDouble);
          },
          0, 1),
      {"distances",
       {x(), random({5, 3, 2})},
       [](const Tensors& t) -> Tensors {
         return {at::dist(t[0], t[1]), at::dist(t[0], t[1], 3), at::dist(t[0], t[1][0], 1)};
       },
       0,
       4},  // the row's gradient is a sum over rows
      one(
          "variance along the cut", x(), [](const auto& t) { return t.var(0); }, 0, 3),
      one(
          "variance beside the cut", x(), [](const auto& t) { return t.var(2); }, 0, 0),
      one("deviation, an empty rank", random({2, 3}, {cut(0)}),
          [](const auto& t) { return t.std(0, /*unbiased=*/false, /*keepdim=*/true); }),
      {"variance and mean",
       {x()},
       [](const Tensors& t) -> Tensors {
         const auto [variance, mean] = at::var_mean(t[0], at::IntArrayRef({0, 2}), false);
         return {variance, mean, variance + mean * mean};
       }},
      one(
          "logsumexp beside the cut", x(), [](const auto& t) { return t.logsumexp({1}); }, 0, 0),
      one(
          "logsumexp along the cut", x(), [](const auto& t) { return t.logsumexp({0}); }, 0, 2),
      one(
          "logsumexp of all, kept, an empty rank", random({2, 3}, {cut(0)}),
          [](const auto& t) {
            return t.logsumexp(at::IntArrayRef({0, 1}), true);
          },
          0, 2),
      one(
          "logsumexp of infinite ones", {-infinite({7, 3}), {cut(0)}},
          [](const auto& t) { return t.logsumexp({0}); }, 0, 2),
      one(
          "prod beside the cut", x(), [](const auto& t) { return t.prod(1); }, 0, 0),
      one(
          "prod along the cut", x(), [](const auto& t) { return t.prod(0, true); }, 0, 0),
      one(
          "prod of all, an empty rank", random({2, 3}, {cut(0)}),
          [](const auto& t) { return t.prod(); }, 0, 0),
      one(
          "prod along the cut, with zeros", {at::arange(14, at::kDouble).view({7, 2}), {cut(0)}},
          [](const auto& t) { return t.prod(0); }, 0, 0),
      one(
          "any along the cut", mask({5, 3}, {cut(0)}), [](const auto& t) { return t.any(0); }, 0,
          1),
      one(
          "all, an empty rank", mask({1, 3}, {cut(0)}), [](const auto& t) { return t.all(); }, 0,
          1),
      one(
          "softmax beside the cut", x(), [](const auto& t) { return t.softmax(-1); }, 0, 0),
      one(
          "softmax along the cut of short rows: gathered", x(),
          [](const auto& t) { return t.softmax(0); }, 1),
      one(
          "softmax along the cut", random({7, 2}, {cut(0)}),
          [](const auto& t) { return t.softmax(0); }, 0, 3),
      one(
          "log_softmax in another type", x(),
          [](const auto& t) { return t.log_softmax(1, at::kFloat); }, 0, 0),
      one("argmax along the cut", x(), [](const auto& t) { return t.argmax(0); }),
      one("argmin along the cut, kept", x(), [](const auto& t) { return t.argmin(0, true); }),
      one(
          "argmax beside the cut", x(), [](const auto& t) { return t.argmax(1); }, 0, 0),
      one("argmax of equals is the first", {at::ones({6, 3}, at::kDouble), {cut(0, 2)}},
          [](const auto& t) { return t.argmax(0); }),
      one("argmax, an empty rank", random({1, 3}, {cut(0)}),
          [](const auto& t) { return t.argmax(0); }),
      one(
          "argmax of all: gathered", x(), [](const auto& t) { return t.argmax(); }, 1),
      {"topk along the cut without gradient",
       {random({2, 7}, {cut(1)})},
       [](const Tensors& t) -> Tensors {
         const auto [values, indices] = t[0].detach().topk(3, 1);
         return {values, indices};
       }},
      {"topk of the smallest, blocks",
       {random({2, 8}, {cut(1, 2)})},
       [](const Tensors& t) -> Tensors {
         const auto [values, indices] = t[0].detach().topk(5, 1, false);
         return {values, indices};
       }},
      one(
          "topk with a gradient: gathered", random({2, 7}, {cut(1)}),
          [](const auto& t) { return std::get<0>(t.topk(3, 1)); }, 1),
  };
}

TEST_P(RulesReduction, Reductions) {
  expect({GetParam()}, reduction_cases());
}
INSTANTIATE_TEST_SUITE_P(Ranks, RulesReduction, testing::Values(2, 3));

/// Two rows and one on the first axis: what the second axis leaves on a rank differs, and "a rank
/// holds no elements" must be said on all or none.
TEST(RulesReduction, ExtremesOfNestedUnevenParts) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<std::string, std::function<at::Tensor(const at::Tensor&)>>> extremes =
      {
          {"amax", [](const auto& t) { return t.amax({0}); }},
          {"amin",
           [](const auto& t) {
             return t.amin({0, 1});
           }},
          {"max", [](const auto& t) { return t.max(); }},
          {"min", [](const auto& t) { return t.min(); }},
          {"norm", [](const auto& t) { return t.norm(kInfinity); }},
          {"vector norm",
           [](const auto& t) {
             return at::linalg_vector_norm(t, kInfinity, at::IntArrayRef({0}));
           }},
          {"argmax", [](const auto& t) { return t.argmax(0); }},
          {"all", [](const auto& t) { return t.gt(0).all(); }},
      };
  std::vector<Case> cases;
  for (const auto& [name, extreme] : extremes) {
    for (const int64_t rows : {1, 2, 3, 5, 7}) {
      const std::string what = c10::str(name, " of ", rows, " rows");
      cases.push_back(one(what, random({rows, 5}, {cut(0), cut(0)}), extreme));
      cases.push_back(one(what + ", without gradient", random({rows, 5}, {cut(0), cut(0)}),
                          [=](const auto& t) { return extreme(t.detach()); }));
      cases.back().gathers = cases[cases.size() - 2].gathers = -1;
    }
  }
  expect({2, 2}, cases);
  expect({3, 2}, cases);
}

/// Ranks answer for all: one that differs is enough, and one row may be compared with all.
TEST(RulesReduction, AllcloseAsksAllRanks) {
  const at::Tensor x = at::randn({5, 3}, at::kDouble), other = x.clone(), row = x[1].clone();
  other[4][1] += 0.5;
  const at::Tensor rows = row.expand({5, 3}).contiguous();
  on_ranks({2}, [&](const oslo::MeshPtr& mesh) {
    const auto cut_rows = [&](const at::Tensor& t) { return oslo::distribute(t, mesh, {cut(0)}); };
    auto& gathers = context_of(mesh)->gathers();
    EXPECT_TRUE(at::allclose(cut_rows(x), x + 1e-12));
    EXPECT_FALSE(at::allclose(cut_rows(x), other));
    EXPECT_FALSE(at::allclose(other, cut_rows(x)));
    EXPECT_TRUE(at::allclose(cut_rows(x), cut_rows(other), 0, 0.6));
    EXPECT_TRUE(at::allclose(row, cut_rows(rows)));
    EXPECT_FALSE(at::allclose(row, cut_rows(x)));
    EXPECT_FALSE(at::allclose(cut_rows(x / 0), cut_rows(x / 0) * 0));
    EXPECT_TRUE(at::allclose(cut_rows(x * NAN), x * NAN, 1e-5, 1e-8, /*equal_nan=*/true));
    EXPECT_EQ(gathers.calls(), 0) << text_of(gathers);
    EXPECT_EQ(all_reduces(*mesh), 8);
  });
}

TEST(RulesReduction, TwoAxes) {
  const auto loss = [](const Tensors& x) -> Tensors {
    return {at::cross_entropy_loss(x[0], x[1], {}, at::Reduction::Mean, 3, 0.1)};
  };
  const auto norm = [](const Tensors& x) -> Tensors {
    return {at::layer_norm(x[0], {7}, x[1], x[2])};
  };
  const auto x = [] { return random({5, 3, 7}, {cut(0), cut(2)}); };
  expect({2, 2},
         {
             one(
                 "sum over both", x(), [](const auto& t) { return t.sum(); }, 0, 2),
             one(
                 "mean over one", x(), [](const auto& t) { return t.mean({2}, true); }, 0, 1),
             one(
                 "norm over both", x(), [](const auto& t) { return t.norm(); }, 0, 2),
             one("argmax over one", x(), [](const auto& t) { return t.argmax(2); }),
             one("variance over both", x(),
                 [](const auto& t) {
                   return t.var(at::IntArrayRef({0, 2}), true);
                 }),
             one("deviation over one", x(), [](const auto& t) { return t.std(0); }),
             one("variance of a dimension cut on both axes", random({5, 3}, {cut(0), cut(0)}),
                 [](const auto& t) { return t.var(0) + t.std(0); }),
             one("rows within a norm", x(), [](const auto& t) { return t.renorm(2, 0, 1.0); }),
             one("all over both", mask({5, 3}, {cut(0), cut(1)}),
                 [](const auto& t) { return t.all().logical_or(t.any(1).all()); }),
             one("sum of a dimension cut on both axes", random({5, 3}, {cut(0), cut(0)}),
                 [](const auto& t) { return t.sum(0) + t.mean(0); }),
             {"rows and classes", {random({5, 7}, {cut(0), cut(1)}), integers({5}, 7)}, loss, 0, 4},
             {"classes on both axes: gathered",
              {random({5, 7}, {cut(1), cut(1)}), integers({5}, 7)},
              loss,
              1},
             {"layer norm, batch and features",
              {x(), random({7}, {whole(), cut(0)}), random({7})},
              norm},
             {"pointwise of other axes",
              {x(), random({5, 3, 7}, {whole(), cut(2)}), random({7})},
              [](const Tensors& t) -> Tensors { return {(t[0] + t[1]) * t[2]}; }},
         });
}

}  // namespace
}  // namespace rule_case
