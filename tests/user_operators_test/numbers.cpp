// Operators of a user's own on cut values: numbers and gradients of one device, what was moved and
// what the report says; with rules by map and by function, and without.
#include "tests/support/rule_case.h"
#include "tests/user_operators_test/library.h"

namespace rule_case {
namespace {

Function two(at::Tensor (*op)(const at::Tensor&, const at::Tensor&)) {
  return of([op](X x) { return op(x[0], x[1]); });
}

std::vector<Case> products() {
  using user_operators::product;
  return {
      {"column", {random({2, 5, 7}), random({7, 5}, {cut(1)})}, two(product), 0, 1},
      {"row", {random({2, 5, 7}, {cut(2)}), random({7, 5}, {cut(0)})}, two(product), 0, 1},
      {"a part of x goes with a row", {random({5, 7}), random({7, 5}, {cut(0)})}, two(product), 0},
      {"batch", {random({5, 2, 7}, {cut(0)}), random({7, 5})}, two(product), 0},
      {"tokens of a vector of batches", {random({7}, {cut(0)}), random({7, 5})}, two(product), 0},
      {"ranks with nothing", {random({2, 7}, {cut(0)}), random({7, 1}, {cut(1)})}, two(product), 1},
  };
}

TEST(UserOperators, AMapMovesWhatItMust) {
  expect({3}, products());
}

TEST(UserOperators, AMapMovesWhatItMustOnTwoAxes) {
  expect({2, 2}, {{"rows and columns",
                   {random({5, 7}, {cut(0), whole()}), random({7, 5}, {whole(), cut(1)})},
                   two(user_operators::product),
                   0},
                  {"both cut on K",
                   {random({5, 7}, {cut(1), cut(1)}), random({7, 5}, {cut(0), cut(0)})},
                   two(user_operators::product),
                   0}});
}

TEST(UserOperators, AnOperatorWithoutARuleIsGatheredAndNamed) {
  expect({3}, {{"column",
                {random({5, 7}), random({7, 5}, {cut(1)})},
                two(user_operators::unruled_product),
                1,
                {},
                "user_operators::unruled_product: no rule"}});
}

std::vector<Case> peak_cases(Tensors (*peaks)(X), int64_t when_rows_are_cut) {
  return {
      {"rows cut", {random({5, 7}, {cut(0)})}, peaks, when_rows_are_cut},
      {"rows of rows cut", {random({2, 5, 7}, {cut(1)})}, peaks, when_rows_are_cut},
      {"elements of rows cut", {random({5, 7}, {cut(1)})}, peaks, 1, {}, "peaks"},
  };
}

TEST(UserOperators, WholeLettersAreGathered) {
  expect({3}, peak_cases(
                  [](X x) -> Tensors {
                    const auto [rest, most] = user_operators::peaks(x[0].detach());
                    return {rest, most};
                  },
                  0));
}

// Its definition is one function for all devices: decomposing it shows that it reads memory.
TEST(UserOperators, ADefinitionThatReadsMemoryIsGatheredWithoutARule) {
  expect({3}, peak_cases(
                  [](X x) -> Tensors {
                    const auto [rest, most] = user_operators::unruled_peaks(x[0].detach());
                    return {rest, most};
                  },
                  1));
}

TEST(UserOperators, ListsAndAbsentTensorsHaveOneTermOfTheMap) {
  const auto sum = of([](X x) { return user_operators::sum_of({x[0], x[1]}, std::nullopt); });
  const auto scaled = of([](X x) { return user_operators::sum_of({x[0], x[1]}, x[2]); });
  expect(
      {3},
      {{"no scale", {random({5, 7}, {cut(1)}), random({5, 7})}, sum, 0, 0},
       {"scale", {random({5, 7}, {cut(1)}), random({5, 7}, {cut(1)}), random({7})}, scaled, 0, 0},
       {"rows that stretch", {random({5, 7}, {cut(0)}), random({1, 7}), random({7})}, scaled, 0},
       {"fewer dimensions",
        {random({2, 5, 7}, {cut(1)}), random({5, 7}), random({7})},
        scaled,
        0}});
}

TEST(UserOperators, ATagSaysPointwise) {
  expect({3}, {{"cut",
                {random({5, 7}, {cut(1)})},
                of([](X x) { return user_operators::square(x[0].detach()); }),
                0,
                0}});
}

TEST(UserOperators, AFunctionIsARule) {
  expect({3}, {{"other dimension cut",
                {random({5, 7}, {cut(1)})},
                of([](X x) { return user_operators::sums_from_behind(x[0]); }),
                0,
                0},
               {"its own dimension cut",
                {random({5, 7}, {cut(0)})},
                of([](X x) { return user_operators::sums_from_behind(x[0]); }),
                -1}});
}

}  // namespace
}  // namespace rule_case
