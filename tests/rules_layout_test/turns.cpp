// Flips, rolls, tiles and triangles along a cut: nothing moves, the result is cut otherwise.
#include <limits>

#include "tests/support/rule_case.h"

namespace rule_case {
namespace {

Tensors turns(X x) {
  return {x[0].flip({1}),        x[0].flip({-1, 0}) * 2,
          x[0].roll(3, 1),       x[0].roll({-4, 2, 13}, {1, 0, 1}),
          x[0].rot90(1, {0, 1}), x[0].rot90(-2, {0, 1}),
          x[0].rot90(7, {1, 0})};
}

Tensors there_and_back(X x) {
  return {x[0].flip({1}).sin().flip({1}) + x[0], x[0].roll(2, 1).sin().roll(-2, 1) + x[0]};
}

Tensors tiles(X x) {
  return {x[0].repeat({2, 3}), x[0].repeat({2, 1, 2}).sin(), x[0].tile({3})};
}

Tensors triangles(X x) {
  return {x[0].tril(), x[0].triu(), x[0].tril(-2), x[0].triu(2), x[0].tril(20), x[0].triu(20)};
}

std::vector<Case> cases(const Operand& operand) {
  return {
      {"turns", {operand}, turns, 0, 0},
      {"tiles", {operand}, tiles, 0, 0},
      {"triangles", {operand}, triangles, 0, 0},
      {"there and back", {operand}, there_and_back, 0, 0},
  };
}

class RulesTurns : public testing::TestWithParam<int> {};

TEST_P(RulesTurns, MoveNothing) {
  for (const int64_t dim : {0, 1}) {
    SCOPED_TRACE(c10::str("dimension ", dim));
    expect({GetParam()}, cases(random({5, 7}, {cut(dim)})));
    expect({GetParam()}, cases(random({8, 10}, {cut(dim, 2)})));     // in blocks
    expect({GetParam()}, cases(random({9, 12}, {cut(dim, 1, 3)})));  // in units
    expect({GetParam()}, cases(random({1, 2}, {cut(dim)})));         // ranks without elements
  }
}

TEST_P(RulesTurns, WhatGoesOnWithThem) {
  const auto x = [] { return random({5, 7}, {cut(1)}); };
  expect({GetParam()},
         {
             one(
                 "a sum of what is turned", x(), [](const auto& t) { return t.flip({1}).sum(1); },
                 0, 1),
             one("a product with what is not exchanges what has another owner", x(),
                 [](const auto& t) { return t.flip({1}) * t + t.roll(3, 1) * t; }),
             one("a turn of a turn", x(),
                 [](const auto& t) { return t.roll(2, 1).flip({1}).roll(3, 1); }),
             one("a part of copies", x(),
                 [](const auto& t) {
                   return t.repeat({1, 3}).roll(5, 1);
                 }),
             one(
                 "a roll of all: gathered", x(), [](const auto& t) { return t.roll(4); }, 1, {},
                 "roll"),
             one(
                 "no copies: gathered", x(),
                 [](const auto& t) {
                   return t.repeat({2, 0});
                 },
                 1, {}, "repeat"),
             one(
                 "triangle of numbers that are not finite",
                 {at::full({5, 7}, std::numeric_limits<double>::infinity(), at::kDouble), {cut(1)}},
                 [](const auto& t) { return t.tril(); }, 0, 0),
             one(
                 "triangle of truth values", mask({3, 5, 7}, {cut(2)}),
                 [](const auto& t) { return t.triu(1); }, 0, 0),
         });
}

TEST_P(RulesTurns, Traces) {
  const auto trace = [](const auto& t) { return t.trace(); };
  expect({GetParam()}, {
                           one("of rows", random({5, 7}, {cut(0)}), trace, 0, 1),
                           one("of columns", random({5, 7}, {cut(1)}), trace, 0, 1),
                           one("of many rows: gathered, LibTorch's gradient is not the diagonal",
                               random({7, 3}, {cut(0)}), trace, 1),
                           one("of a row more than columns", random({4, 3}, {cut(0)}), trace, 0, 1),
                           one("of blocks", random({8, 9}, {cut(0, 2)}), trace, 0, 1),
                           one("of integers", integers({5, 7}, 9, {cut(1)}), trace, 0, 1),
                           one("of one element", random({1, 3}, {cut(0)}), trace, 0, 1),
                       });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RulesTurns, testing::Values(2, 3));

TEST(RulesTurns, TwoAxes) {
  const auto trace = [](const auto& t) { return t.trace(); };
  const auto flips = [](X x) -> Tensors { return {x[0].flip({0}), x[0].flip({1, 0}).sin()}; };
  for (const auto& axes : {std::vector<int>{2, 2}, std::vector<int>{3, 2}}) {
    expect(axes, cases(random({5, 7}, {cut(0), cut(1)})));
    for (const int64_t rows : {1, 3, 5, 9}) {
      const auto x = [rows] { return random({rows, 8}, {cut(0), cut(0)}); };
      expect(axes, {
                       {"flips of nested cuts", {x()}, flips, 0, 0},
                       {"copies of nested cuts", {x()}, tiles, 0, 0},
                       {"triangles of nested cuts", {x()}, triangles, 0, 0},
                       one("trace of nested cuts", x(), trace, 0, 2),
                       one(
                           "roll of nested cuts: gathered", x(),
                           [](const auto& t) { return t.roll(2, 0); }, 1),
                   });
    }
    expect(axes, {one("trace of both", random({5, 7}, {cut(1), cut(0)}), trace, 0, 2)});
  }
}

}  // namespace
}  // namespace rule_case
