// Element by element: operands that are cut alike, apart, stretched or written in place.
#include "tests/rules_reduction_test/rules_reduction.h"
#include "tests/support/rule_case.h"

namespace rule_case {
namespace {

using std::nullopt;

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

TEST_P(RulesReduction, Pointwise) {
  expect({GetParam()}, pointwise_cases());
}

}  // namespace
}  // namespace rule_case
