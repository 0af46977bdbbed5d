#include "tests/support/rule_case.h"

namespace {

using rule_case::Case;
using rule_case::cut;
using rule_case::integers;
using rule_case::mask;
using rule_case::Operand;
using rule_case::Placement;
using rule_case::random;
using rule_case::Tensors;
using rule_case::whole;
using std::nullopt;
using Unary = std::function<at::Tensor(const at::Tensor&)>;

Case one(const std::string& name, Operand operand, const Unary& function, int64_t gathers = 0,
         std::optional<int64_t> all_reduces = nullopt) {
  return {name,
          {std::move(operand)},
          [function](const Tensors& x) -> Tensors { return {function(x[0])}; },
          gathers,
          all_reduces};
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
          "max along the cut with a gradient: gathered", x(),
          [](const auto& t) { return t.amax({0}); }, 1),
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
          "any along the cut", mask({5, 3}, {cut(0)}), [](const auto& t) { return t.any(0); }, 0,
          1),
      one(
          "all, an empty rank", mask({1, 3}, {cut(0)}), [](const auto& t) { return t.all(); }, 0,
          1),
      one(
          "softmax beside the cut", x(), [](const auto& t) { return t.softmax(-1); }, 0, 0),
      one(
          "softmax along the cut: gathered", x(), [](const auto& t) { return t.softmax(0); }, 1),
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

std::vector<Case> loss_cases() {
  const auto loss = [](int64_t reduction, int64_t ignored = -100, double smoothing = 0) {
    return [=](const Tensors& x) -> Tensors {
      return {at::cross_entropy_loss(x[0], x[1], {}, reduction, ignored, smoothing)};
    };
  };
  const auto logits = [](std::vector<Placement> placements) {
    return random({5, 7}, std::move(placements));
  };
  const auto targets = [](std::vector<Placement> placements = {}) {
    return integers({5}, 7, std::move(placements));
  };
  return {
      {"classes cut, mean", {logits({cut(1)}), targets()}, loss(at::Reduction::Mean), 0, 2},
      {"classes cut, sum", {logits({cut(1)}), targets()}, loss(at::Reduction::Sum), 0, 2},
      {"classes cut, each", {logits({cut(1)}), targets()}, loss(at::Reduction::None), 0, 2},
      {"classes cut, ignored rows",
       {logits({cut(1)}), targets()},
       loss(at::Reduction::Mean, 3),
       0,
       2},
      {"classes cut, smoothing",
       {logits({cut(1)}), targets()},
       loss(at::Reduction::Mean, 3, 0.1),
       0,
       2},
      {"an empty rank",
       {random({5, 1}, {cut(1)}), integers({5}, 1)},
       loss(at::Reduction::Mean, 3, 0.1),
       0,
       2},
      {"all rows ignored",
       {logits({cut(1)}), {at::full({5}, -100, at::kLong), {}}},
       loss(at::Reduction::Sum),
       0,
       2},
      {"classes in blocks: gathered",
       {random({5, 8}, {cut(1, 2)}), targets()},
       loss(at::Reduction::Mean),
       1},
      {"rows cut, mean", {logits({cut(0)}), targets({cut(0)})}, loss(at::Reduction::Mean, 3), 0, 2},
      {"rows cut, each, smoothing",
       {logits({cut(0)}), targets()},
       loss(at::Reduction::None, 3, 0.1),
       0,
       0},
      {"rows of the logits cut by class, of the targets by row: the targets are gathered",
       {logits({cut(1)}), targets({cut(0)})},
       loss(at::Reduction::None),
       1,
       2},
      {"positions beside the classes",
       {random({2, 7, 3}, {cut(1)}), integers({2, 3}, 7)},
       loss(at::Reduction::Mean),
       0,
       2},
      {"one row without batch",
       {random({7}, {cut(0)}), {at::full({}, 4, at::kLong), {}}},
       loss(at::Reduction::Mean),
       0,
       2},
      {"class weights: gathered",
       {logits({cut(1)}), targets(), random({7})},
       [](const Tensors& x) -> Tensors {
         return {at::cross_entropy_loss(x[0], x[1], x[2].detach().abs())};
       },
       1},
      {"probabilities: gathered", {logits({cut(1)}), logits({})}, loss(at::Reduction::Mean), 1},
      {"a loss without a rule decomposes",
       {logits({cut(0)}), logits({})},
       [](const Tensors& x) -> Tensors { return {at::hinge_embedding_loss(x[0], x[1].sign())}; }},
      {"mse",
       {logits({cut(0)}), logits({})},
       [](const Tensors& x) -> Tensors {
         return {at::mse_loss(x[0], x[1], at::Reduction::None), at::mse_loss(x[0], x[1])};
       },
       0},
  };
}

std::vector<Case> normalization_cases() {
  const auto norm = [](const Tensors& x) -> Tensors {
    return {at::layer_norm(x[0], {7}, x[1], x[2])};
  };
  return {
      {"rows cut: two copies", {random({5, 3, 7}, {cut(0)}), random({7}), random({7})}, norm, 0, 2},
      {"features cut: two statistics, forward and backward",
       {random({2, 3, 7}, {cut(2)}), random({7}, {cut(0)}), random({7})},
       norm,
       0,
       4},
      {"features cut, two dimensions",
       {random({2, 5, 7}, {cut(1)})},
       [](const Tensors& x) -> Tensors {
         return {at::layer_norm(x[0], {5, 7})};
       },
       0,
       4},
      {"features cut, an empty rank",
       {random({4, 1, 7}, {cut(1)})},
       [](const Tensors& x) -> Tensors {
         return {at::layer_norm(x[0], {1, 7})};
       },
       0,
       4},
      {"dropout in evaluation",
       {random({5, 3}, {cut(0)})},
       [](const Tensors& x) -> Tensors {
         return {at::dropout(x[0], 0.5, false) + at::dropout(x[0], 0, true)};
       }},
  };
}

std::vector<Case> pointwise_cases() {
  const auto cutx = [] { return random({5, 3}, {cut(0)}); };
  return {
      one(
          "a chain", cutx(),
          [](const auto& x) {
            return at::gelu(x) * at::silu(x).exp().clamp_max(3) +
                   at::relu(-x).pow(2) / (x.abs() + 1) + x.tanh();
          },
          0, 0),
      {"alike",
       {cutx(), cutx()},
       [](const Tensors& x) -> Tensors { return {x[0] * x[1] + x[1]}; },
       0,
       0},
      {"a whole one with a gradient is cut, not copied",
       {cutx(), random({5, 3})},
       [](const Tensors& x) -> Tensors { return {x[0] * x[1]}; },
       0,
       0},
      {"a row with a gradient: one all-reduce",
       {cutx(), random({3})},
       [](const Tensors& x) -> Tensors { return {x[0] * x[1] + x[1]}; },
       0,
       1},
      {"a stretching dimension",
       {random({1, 3}), cutx()},
       [](const Tensors& x) -> Tensors { return {x[0] - x[1]}; },
       0,
       1},
      {"a stretching dimension that is cut: gathered",
       {random({1, 3}, {cut(0)}), cutx()},
       [](const Tensors& x) -> Tensors { return {x[0] - x[1]}; },
       1},
      {"other cuts: gathered",
       {random({6, 4}, {cut(0)}), random({6, 4}, {cut(1)})},
       [](const Tensors& x) -> Tensors { return {x[0] + x[1]}; },
       1},
      {"more dimensions",
       {random({2, 5, 3}), cutx()},
       [](const Tensors& x) -> Tensors { return {x[0] + x[1]}; },
       0,
       nullopt},
      {"types meet",
       {cutx(), integers({5, 3}, 9, {cut(0)})},
       [](const Tensors& x) -> Tensors {
         return {x[0].to(at::kFloat) * x[1], x[1] + 1, x[1] / 2, x[0] > x[1]};
       }},
      {"where and masked_fill",
       {cutx(), mask({5, 3}), mask({1, 3}), cutx()},
       [](const Tensors& x) -> Tensors {
         return {at::where(x[1], x[0], x[3]), x[0].masked_fill(x[2], -1.0),
                 at::where(x[1], x[0], 0.0)};
       }},
      {"a cut mask on whole values",
       {random({5, 3}), mask({5, 3}, {cut(0)})},
       [](const Tensors& x) -> Tensors { return {x[0].masked_fill(x[1], 0)}; }},
      {"in place",
       {cutx(), random({5, 3}), mask({5, 1}), random({3})},
       [](const Tensors& x) -> Tensors {
         const at::Tensor y = x[0] * 2;
         y.add_(x[1]).mul_(x[3]).masked_fill_(x[2], 0.5).sub_(1);
         const at::Tensor z = y.clone();
         z.copy_(x[1]);
         return {y, z};
       }},
      {"in place through a view",
       {cutx(), random({5})},
       [](const Tensors& x) -> Tensors {
         const at::Tensor y = x[0] * 1;
         y.select(1, 1).add_(x[1]);
         return {y * 2};
       }},
      {"a whole one, changed by a cut one, gathers",
       {random({5, 3}), cutx()},
       [](const Tensors& x) -> Tensors { return {(x[0] * 1).add_(x[1])}; },
       1},
      {"addmv",
       {random({5}), random({5, 3}, {cut(0)}), random({3})},
       [](const Tensors& x) -> Tensors { return {at::addmv(x[0], x[1], x[2])}; }},
      {"equal, to itself, a copy, another and one of another size",
       {cutx(), random({5, 3})},
       [](const Tensors& x) -> Tensors {
         at::Tensor other = x[1].clone();
         other[4][2] += 1;  // what one rank alone sees
         const auto truth = [](bool value) { return at::full({1}, value); };
         return {truth(x[0].equal(x[0])), truth((x[0] * 1).equal(x[0])),
                 truth((x[1] + x[0] * 0).equal(other)), truth(x[0].equal(x[1][0]))};
       }},
      {"likes",
       {cutx()},
       [](const Tensors& x) -> Tensors {
         return {at::zeros_like(x[0]) + x[0] * at::ones_like(x[0]), at::full_like(x[0], 2)};
       }},
  };
}

class RulesReduction : public testing::TestWithParam<int> {};

TEST_P(RulesReduction, Reductions) {
  rule_case::expect({GetParam()}, reduction_cases());
}
TEST_P(RulesReduction, Losses) {
  rule_case::expect({GetParam()}, loss_cases());
}
TEST_P(RulesReduction, Normalizations) {
  rule_case::expect({GetParam()}, normalization_cases());
}
TEST_P(RulesReduction, Pointwise) {
  rule_case::expect({GetParam()}, pointwise_cases());
}
INSTANTIATE_TEST_SUITE_P(Ranks, RulesReduction, testing::Values(2, 3));

TEST(RulesReduction, TwoAxes) {
  const auto loss = [](const Tensors& x) -> Tensors {
    return {at::cross_entropy_loss(x[0], x[1], {}, at::Reduction::Mean, 3, 0.1)};
  };
  const auto norm = [](const Tensors& x) -> Tensors {
    return {at::layer_norm(x[0], {7}, x[1], x[2])};
  };
  const auto x = [] { return random({5, 3, 7}, {cut(0), cut(2)}); };
  rule_case::expect(
      {2, 2},
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

/// An index that no rank holds must not count as nothing.
TEST(RulesReduction, IndicesOutOfRangeAreRefused) {
  rule_case::on_ranks({2}, [](const oslo::MeshPtr& mesh) {
    const at::Tensor table = oslo::distribute(at::randn({5, 4}), mesh, {cut(0)});
    EXPECT_THROW(at::embedding(table, at::tensor({1, 5}, at::kLong)), c10::IndexError);
    const at::Tensor logits = oslo::distribute(at::randn({2, 5}), mesh, {cut(1)});
    EXPECT_THROW(at::cross_entropy_loss(logits, at::tensor({1, -3}, at::kLong)), c10::IndexError);
  });
}

}  // namespace
