#include "tests/support/rule_case.h"

namespace rule_case {
namespace {

using std::nullopt;

std::vector<Case> reorder_cases() {
  return {
      one("t", random({5, 3}, {cut(0)}), [](const auto& x) { return x.t(); }),
      one("t of a vector", random({5}, {cut(0)}), [](const auto& x) { return x.t(); }),
      one("transpose", random({2, 5, 3}, {cut(1)}),
          [](const auto& x) { return x.transpose(-1, 1); }),
      one("permute", random({2, 5, 3}, {cut(1)}),
          [](const auto& x) {
            return x.permute({1, -1, 0});
          }),
      one("movedim decomposes", random({2, 5, 3}, {cut(1)}),
          [](const auto& x) { return x.movedim(1, 0); }),
      one("unsqueeze", random({2, 5}, {cut(1)}), [](const auto& x) { return x.unsqueeze(-2); }),
      one("squeeze", random({1, 2, 1, 3}, {cut(1)}), [](const auto& x) { return x.squeeze(); }),
      one("squeeze leaves what has one element on this rank only", random({1, 3, 2}, {cut(1)}),
          [](const auto& x) { return x.squeeze() + x.squeeze(1).squeeze(0); }),
      one("squeeze of some", random({1, 3, 1}, {cut(1)}),
          [](const auto& x) {
            return x.squeeze(std::vector<int64_t>{0, 1});
          }),
      one("tril beside the cut", random({5, 3, 3}, {cut(0)}),
          [](const auto& x) { return x.tril(); }),
  };
}

std::vector<Case> reshape_cases() {
  return {
      one("split into heads", random({2, 3, 12}, {cut(2, 1, 4)}),
          [](const auto& x) {
            return x.view({2, 3, 3, 4});
          }),
      one(
          "heads cut in other units: gathered", random({2, 3, 20}, {cut(2)}),
          [](const auto& x) {
            return x.view({2, 3, 5, 4});
          },
          1),
      one("heads joined", random({2, 3, 5, 4}, {cut(2)}),
          [](const auto& x) {
            return x.reshape({2, 3, -1});
          }),
      one("head elements joined: cut in blocks", random({2, 3, 5}, {cut(2)}),
          [](const auto& x) {
            return x.view({2, 15}).view({2, 3, 5});
          }),
      one("rows joined, features cut", random({2, 3, 5}, {cut(2)}),
          [](const auto& x) {
            return x.view({6, 5});
          }),
      one("cut inner dimension joined with outer", random({2, 5, 3}, {cut(1)}),
          [](const auto& x) {
            return x.view({10, 3}).view({2, 5, 3});
          }),
      one("fused projection to (3, heads, size)", random({2, 24}, {cut(1, 3, 2)}),
          [](const auto& x) {
            return x.view({2, 3, 4, 2}).permute({1, 0, 2, 3});
          }),
      one("flatten all", random({5, 2, 3}, {cut(0)}), [](const auto& x) { return x.flatten(); }),
      one("flatten some", random({2, 5, 3}, {cut(1)}),
          [](const auto& x) { return x.flatten(1, -1); }),
      one("unflatten", random({2, 12}, {cut(1, 1, 3)}),
          [](const auto& x) {
            return x.unflatten(1, {4, 3});
          }),
      one("dimensions of one", random({2, 5}, {cut(1)}),
          [](const auto& x) {
            return x.view({1, 2, 1, 5, 1}).view({2, 5});
          }),
      one("one row over several ranks", random({1, 6}, {cut(0)}),
          [](const auto& x) {
            return x.view({1, 2, 3});
          }),
      one(
          "nothing to cut", random({0, 6}, {cut(1)}),
          [](const auto& x) {
            return x.view({0, 2, 3});
          },
          1),
      one("after a transpose", random({2, 5, 3, 4}, {cut(1)}),
          [](const auto& x) {
            return x.transpose(1, 2).contiguous().view({2, 3, 20});
          }),
      one("view_as decomposes", random({2, 6}, {cut(0)}),
          [](const auto& x) {
            return x.view_as(at::empty({2, 3, 2}));
          }),
  };
}

std::vector<Case> part_cases() {
  const auto qkv = [](const Tensors& x) -> Tensors { return x[0].split(8, 1); };
  const auto chunks = [](const Tensors& x) -> Tensors { return x[0].chunk(3, 1); };
  const auto sizes = [](const Tensors& x) -> Tensors {
    return x[0].split_with_sizes({8, 2, 2}, 1);
  };
  const auto unbind = [](const Tensors& x) -> Tensors { return x[0].unbind(0); };
  const auto runs = Placement::shard_runs(1, {8, 2, 2}, {1, 1, 1});
  const auto flattened = [](const Tensors& x) -> Tensors { return {x[0].flatten() * 2}; };
  return {
      {"runs flattened with a few rows", {random({5, 12}, {runs})}, flattened, 0, 0},
      // Each row would have the runs again.
      {"runs flattened with many rows", {random({2100, 12}, {runs})}, flattened, 1},
      {"split of fused blocks", {random({2, 24}, {cut(1, 3)})}, qkv, 0, 0},
      {"split of one block: gathered", {random({2, 24}, {cut(1)})}, qkv, 1, 0},
      {"chunk of fused blocks", {random({2, 15}, {cut(1, 3)})}, chunks, 0, 0},
      {"chunk beside the cut, uneven", {random({5, 7}, {cut(0)})}, chunks, 0, 0},
      {"runs of grouped queries", {random({2, 12}, {runs})}, sizes, 0, 0},
      {"put together again",
       {random({2, 12}, {runs})},
       [](const Tensors& x) -> Tensors {
         return {at::cat(x[0].split_with_sizes({8, 2, 2}, 1), 1) * x[0]};
       },
       0,
       0},
      one("slice of a block", random({2, 24}, {cut(1, 3)}),
          [](const auto& x) { return x.slice(1, 8, 16); }),
      one("slice of all", random({2, 7}, {cut(1)}),
          [](const auto& x) { return x.slice(1, 0, 99); }),
      one("slice inside a stretch: ranks keep what they have", random({2, 7}, {cut(1)}),
          [](const auto& x) { return x.slice(1, -3); }),
      one(
          "slice with a step: gathered", random({2, 7}, {cut(1)}),
          [](const auto& x) { return x.slice(1, 0, 7, 2); }, 1),
      one("slice beside the cut", random({5, 7}, {cut(0)}),
          [](const auto& x) { return x.slice(1, 1, 6, 2); }),
      one("empty slice", random({5, 7}, {cut(0)}), [](const auto& x) { return x.slice(1, 4, 2); }),
      one("narrow", random({5, 7}, {cut(0)}), [](const auto& x) { return x.narrow(-1, 2, 3); }),
      one("select beside the cut", random({5, 7}, {cut(0)}),
          [](const auto& x) { return x.select(1, -2); }),
      one("select along the cut: one row is brought", random({5, 7}, {cut(0)}),
          [](const auto& x) { return x[3]; }),
      {"unbind beside the cut", {random({3, 5}, {cut(1)})}, unbind, 0, 0},
      {"unbind along the cut: gathered", {random({3, 5}, {cut(0)})}, unbind, 1, 0},
  };
}

std::vector<Case> join_cases() {
  const auto along = [](int64_t dim) {
    return [dim](const Tensors& x) -> Tensors { return {at::cat(x, dim)}; };
  };
  const auto stack = [](const Tensors& x) -> Tensors { return {at::stack(x, -2)}; };
  return {
      {"cat beside the cut", {random({5, 2}, {cut(0)}), random({5, 3}, {cut(0)})}, along(1), 0, 0},
      {"cat along the cut", {random({2, 5}, {cut(1)}), random({2, 4}, {cut(1)})}, along(1), 0, 0},
      {"cat along the cut and back",
       {random({2, 8}, {cut(1)}), random({2, 8}, {cut(1)})},
       [](const Tensors& x) -> Tensors { return at::cat(x, 1).chunk(2, 1); },
       0,
       0},
      {"cat with a whole one, beside the cut",
       {random({5, 2}, {cut(0)}), random({5, 3})},
       along(1),
       0,
       0},
      {"cat with a whole one, along the cut: gathered",
       {random({2, 5}, {cut(1)}), random({2, 3})},
       along(1),
       1,
       0},
      {"cat of other cuts: gathered",
       {random({6, 4}, {cut(0)}), random({6, 4}, {cut(1)})},
       along(1),
       1,
       0},
      {"cat with an empty vector",
       {random({5, 2}, {cut(0)}), random({5, 3}, {cut(0)})},
       [](const Tensors& x) -> Tensors {
         return {at::cat({x[0], at::empty({0}, at::kDouble), x[1]}, 1)};
       },
       0,
       0},
      {"stack", {random({2, 5}, {cut(1)}), random({2, 5}, {cut(1)})}, stack, 0, 0},
      {"stack with a whole one", {random({2, 5}, {cut(1)}), random({2, 5})}, stack, 0, 0},
      one("expand", random({5, 1, 2}, {cut(0)}),
          [](const auto& x) {
            return x.expand({3, 5, 4, -1});
          }),
      one(
          "expand of a cut dimension of one", random({1, 3}, {cut(0)}),
          [](const auto& x) {
            return x.expand({4, 3});
          },
          1),
      {"expand_as",
       {random({1, 5}, {cut(1)}), random({3, 5}, {cut(1)})},
       [](const Tensors& x) -> Tensors { return {x[0].expand_as(x[1]) * x[1]}; },
       0,
       nullopt},
      one("repeat_interleave along the cut", random({2, 5, 3}, {cut(1)}),
          [](const auto& x) { return x.repeat_interleave(2, 1); }),
      one("repeat_interleave as grouped queries expand", random({2, 5, 3}, {cut(1)}),
          [](const auto& x) {
            return x.unsqueeze(2).expand({2, 5, 2, 3}).reshape({2, 10, 3});
          }),
      one(
          "repeat_interleave of all: gathered", random({5, 3}, {cut(0)}),
          [](const auto& x) { return x.repeat_interleave(2); }, 1),
      one("repeat beside the cut", random({5, 3}, {cut(0)}),
          [](const auto& x) {
            return x.repeat({2, 1, 2});
          }),
  };
}

std::vector<Case> copy_cases() {
  return {
      one("clone", random({5, 3}, {cut(0)}), [](const auto& x) { return x.clone(); }),
      one("contiguous", random({5, 3}, {cut(0)}), [](const auto& x) { return x.t().contiguous(); }),
      one("to and back", random({5, 3}, {cut(0)}),
          [](const auto& x) { return x.to(at::kFloat).to(at::kDouble); }),
      one("to like another", random({5, 3}, {cut(0)}),
          [](const auto& x) {
            return x.to(at::empty({2, 2, 2}, at::kFloat)).type_as(x);
          }),
      one("detach", random({5, 3}, {cut(0)}), [](const auto& x) { return x * x.detach(); }),
      one(
          "the median of all has no rule: gathered and named", random({5, 3}, {cut(0)}),
          [](const auto& x) { return x.median(); }, 1, nullopt, "aten::median"),
      one("new tensors are whole", random({5, 3}, {cut(0)}),
          [](const auto& x) {
            return x + x.new_ones({5, 3});
          }),
  };
}

class RulesShape : public testing::TestWithParam<int> {};

TEST_P(RulesShape, Reorder) {
  expect({GetParam()}, reorder_cases());
}
TEST_P(RulesShape, Reshape) {
  expect({GetParam()}, reshape_cases());
}
TEST_P(RulesShape, Parts) {
  expect({GetParam()}, part_cases());
}
TEST_P(RulesShape, Joins) {
  expect({GetParam()}, join_cases());
}
TEST_P(RulesShape, Copies) {
  expect({GetParam()}, copy_cases());
}
INSTANTIATE_TEST_SUITE_P(Ranks, RulesShape, testing::Values(2, 3));

TEST(RulesShape, TwoAxes) {
  expect({2, 2},
         {
             one(
                 "batch and sequence joined", random({3, 5, 2}, {cut(0), cut(1)}),
                 [](const auto& x) {
                   return x.view({15, 2}).view({3, 5, 2});
                 },
                 0),  // parts of 10 and of 5 rows, which are cut again
             one("batch and heads", random({3, 2, 12}, {cut(0), cut(2, 1, 3)}),
                 [](const auto& x) {
                   return x.view({3, 2, 4, 3}).transpose(1, 2).contiguous().view({12, 2, 3});
                 }),
             one(
                 "a rank without batch", random({1, 4, 2}, {cut(0), cut(1)}),
                 [](const auto& x) {
                   return x.reshape({4, 2});
                 },
                 1),
             one("one dimension on both axes", random({2, 12}, {cut(1), cut(1)}),
                 [](const auto& x) {
                   return x.view({2, 4, 3});
                 }),
             one("gated halves", random({5, 12}, {cut(0), cut(1, 2)}),
                 [](const auto& x) { return at::glu(x, 1); }),
             one("diagonals beside both cuts", random({4, 5, 3, 4}, {cut(1), cut(2)}),
                 [](const auto& x) {
                   const auto y = x.diagonal(1, 0, 3);
                   return at::diagonal_scatter(x, y * y, 1, 0, 3);
                 }),
             one("one written beside both cuts", random({5, 2, 3}, {cut(0), cut(2)}),
                 [](const auto& x) { return at::select_scatter(x, x.sum(1), 1, -1); }),
             one("split beside both cuts", random({5, 6, 3}, {cut(0), cut(2)}),
                 [](const auto& x) { return x.chunk(2, 1)[1]; }),
             {"cat along one axis, other cuts on the other",
              {random({5, 2, 4}, {cut(0), cut(1)}), random({3, 2, 4}, {cut(0), cut(2)})},
              [](const Tensors& x) -> Tensors { return {at::cat(x, 0)}; },
              1},
             one("expand and squeeze", random({5, 1, 3}, {cut(0), cut(2)}),
                 [](const auto& x) {
                   return x.expand({5, 2, 3}) + x.squeeze(1).unsqueeze(1);
                 }),
         });
}

/// What one device refuses, every rank refuses with the same words, before it waits for another.
/// Two axes cut what becomes one dimension, unevenly: what the second axis's cut becomes differs
/// between the ranks of the first, and has a place in the new shape on all of them or on none.
TEST(RulesShape, NestedUnevenly) {
  const auto reshaped = [](std::vector<int64_t> sizes) {
    return of([=](X x) { return x[0].reshape(sizes) * 2; });
  };
  expect({2, 2},
         {
             {"flattened", {random({3, 4}, {cut(0), cut(1)})}, reshaped({12}), 0, 0},
             {"flattened, rows on both", {random({3, 4}, {cut(0), cut(0)})}, reshaped({12}), -1},
             {"flattened, columns first", {random({4, 3}, {cut(1), cut(0)})}, reshaped({12}), 0, 0},
             {"other rows", {random({3, 4}, {cut(0), cut(1)})}, reshaped({6, 2}), 0, 0},
             {"other rows, rows on both", {random({3, 4}, {cut(0), cut(0)})}, reshaped({6, 2}), -1},
             {"split, rows on both", {random({6, 4}, {cut(0), cut(0)})}, reshaped({3, 2, 4}), -1},
             {"split, in units on both",
              {random({10, 3}, {cut(0, 1, 2), cut(0, 1, 2)})},
              reshaped({5, 2, 3}),
              0,
              0},
             {"joined again, then added to what was cut so",
              {random({3, 4}, {cut(0), cut(1)}), random({12}, {cut(0, 1, 4), cut(0, 1, 2)})},
              of([](X x) { return x[0].reshape({12}) + x[1]; }),
              -1},
             {"beside what is cut in units that one rank of the first axis cannot tell",
              {random({6}, {cut(0, 1, 2), cut(0, 1, 2)}), random({6}, {cut(0, 1, 2), cut(0)})},
              of([](X x) { return x[0] * x[1]; }),
              -1},
         });
}

/// More dimensions than the alphabet has letters.
TEST(RulesShape, ManyDimensions) {
  std::vector<int64_t> sizes(40, 1);
  sizes[0] = 5;
  sizes[33] = 3;
  sizes[39] = 2;
  for (const int64_t dim : {0, 33, 39}) {
    expect(
        {3},
        {
            {"pointwise",
             {random(sizes, {cut(dim)}), random(sizes, {cut(0)})},
             of([](X x) { return (x[0] * x[1]).sin(); }),
             -1},
            {"sum", {random(sizes, {cut(dim)})}, of([](X x) {
               return x[0].sum(at::IntArrayRef({0, 33}));
             })},
            {"transpose", {random(sizes, {cut(dim)})}, of([](X x) {
               return x[0].transpose(0, 39) * 2;
             })},
            {"softmax", {random(sizes, {cut(dim)})}, of([](X x) { return x[0].softmax(33); }), -1},
            {"stack", {random(sizes, {cut(dim)}), random(sizes)}, of([](X x) {
               return at::stack({x[0], x[1]}, 5);
             })},
        });
  }
}

TEST(RulesShape, ShapesThatDoNotFitGiveTheOrdinaryError) {
  on_ranks({2}, [](const oslo::MeshPtr& mesh) {
    const at::Tensor x = at::randn({4, 6}), y = at::randn({5, 3});
    const std::vector<std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>> wrong{
        [](const auto& a, const auto& b) { return a.matmul(b); },
        [](const auto& a, const auto& b) { return at::addmm(b, a, b); },
        [](const auto& a, const auto& b) { return a + b; },
        [](const auto& a, const auto& b) {
          return at::cat({a, b}, 0);
        },
        [](const auto& a, const auto& b) {
          return at::stack({a, b}, 0);
        },
        [](const auto& a, const auto&) {
          return a.view({5, 5});
        },
        [](const auto& a, const auto&) {
          return a.expand({4, 7});
        },
        [](const auto& a, const auto&) { return a.repeat({2}); },
        [](const auto& a, const auto&) { return a.transpose(0, 5); },
        [](const auto& a, const auto&) { return a.sum(3); },
        [](const auto& a, const auto&) { return a.unsqueeze(9); },
        [](const auto& a, const auto&) {
          return a.split_with_sizes({1, 2}, 0)[0];
        },
        [](const auto& a, const auto&) { return at::layer_norm(a, {5}); },
        [](const auto& a, const auto&) {
          return at::linear(a, at::ones({3, 4}));
        },
    };
    for (size_t i = 0; i < wrong.size(); ++i) {
      std::string expected;
      try {
        wrong[i](x, y);
      } catch (const c10::Error& error) {
        expected = error.what_without_backtrace();
      }
      ASSERT_FALSE(expected.empty()) << i;
      for (const int64_t dim : {0, 1}) {
        try {
          wrong[i](oslo::distribute(x, mesh, {cut(dim)}), y);
          ADD_FAILURE() << i << " was accepted";
        } catch (const c10::Error& error) {
          EXPECT_EQ(error.what_without_backtrace(), expected) << i;
        } catch (const std::exception& error) {
          ADD_FAILURE() << i << ": " << error.what();
        }
      }
    }
  });
}

}  // namespace
}  // namespace rule_case
