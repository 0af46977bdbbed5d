#include "tests/support/rule_case.h"

#include <limits>

// Reading and writing by index: gather, scatter, index, bags of embeddings.
namespace rule_case {
namespace {

using at::indexing::Slice;

std::vector<Case> gather_cases() {
  const auto along = of([](X x) { return x[0].gather(1, x[1]); });
  return {
      {"beside the cut", {random({5, 4}, {cut(0)}), integers({5, 2}, 4)}, along, 0, 0},
      {"few along the cut: summed", {random({5, 9}, {cut(1)}), integers({5, 1}, 9)}, along, 0, 1},
      {"many along the cut: gathered", {random({5, 9}, {cut(1)}), integers({5, 6}, 9)}, along, 1},
      {"blocks", {random({5, 12}, {cut(1, 2)}), integers({5, 2}, 12)}, along, 0, 1},
      {"an empty rank", {random({4, 2}, {cut(1)}), integers({4, 1}, 2)}, along, 0, 1},
      {"an index shorter elsewhere: gathered",
       {random({5, 4}, {cut(0)}), integers({3, 4}, 4)},
       along,
       1},
      {"of a whole table, the index cut",
       {random({5, 4}), integers({5, 7}, 4, {cut(1)})},
       along,
       0,
       1},
      {"of integers", {integers({5, 9}, 100, {cut(1)}), integers({5, 1}, 9)}, along, 0, 1},
      {"of truth values: gathered", {mask({5, 9}, {cut(1)}), integers({5, 1}, 9)}, along, 1},
      {"table and index cut apart: the table is gathered",
       {random({5, 9}, {cut(1)}), integers({5, 1}, 9, {cut(0)})},
       along,
       1},
      {"take_along_dim beside the cut",
       {random({5, 4}, {cut(0)})},
       of([](X x) { return x[0].take_along_dim(x[0].argsort(int64_t{1}), 1); }),
       0,
       0},
  };
}

std::vector<Case> index_cases() {
  const auto select = of([](X x) { return x[0].index_select(0, x[1]); });
  const auto at_0 = of([](X x) { return x[0].index({x[1]}); });
  const auto at_1 = of([](X x) { return x[0].index({Slice(), x[1]}); });
  const auto at_12 = of([](X x) { return x[0].index({Slice(), x[1], x[2]}); });
  const auto at_02 = of([](X x) { return x[0].index({x[1], Slice(), x[2]}); });
  const auto x = [](int64_t dim) { return random({7, 4, 3}, {cut(dim)}); };
  return {
      {"select beside the cut", {x(1), integers({5}, 7)}, select, 0, 0},
      {"select few along the cut: summed", {x(0), integers({3}, 7)}, select, 0, 1},
      {"select many along the cut: gathered", {x(0), integers({5}, 7)}, select, 1},
      {"select, an empty rank", {random({2, 3}, {cut(0)}), integers({1}, 2)}, select, 0, 1},
      {"select by a cut index", {random({7, 4}), integers({5}, 7, {cut(0)})}, select, 0, 1},
      {"index beside the cut", {x(0), integers({5}, 4)}, at_1, 0, 0},
      {"index before the cut", {x(2), integers({2, 5}, 4)}, at_1, 0, 0},
      {"index few along the cut: summed", {x(0), integers({3, 1}, 7)}, at_0, 0, 1},
      {"index from the end", {x(0), numbers({-1, -7, 2})}, at_0, 0, 1},
      {"index many along the cut: gathered", {x(0), integers({5}, 7)}, at_0, 1},
      {"a cut index into a whole table",
       {random({7, 4}), integers({2, 5}, 7, {cut(1)})},
       at_0,
       0,
       1},
      {"two indices beside the cut, side by side",
       {x(0), integers({2, 1}, 4), integers({5}, 3)},
       at_12,
       0,
       0},
      {"two indices apart, result in front",
       {x(1), integers({5}, 7), integers({5}, 3)},
       at_02,
       0,
       0},
      {"two indices, one along the cut: summed",
       {x(2), integers({5}, 4), integers({1}, 3)},
       at_12,
       0,
       1},
      {"two indices, many along the cut: gathered",
       {x(2), integers({9}, 4), integers({9}, 3)},
       at_12,
       1},
      {"pairs of row and column, rows cut: summed",
       {random({5, 7}, {cut(0)}), numbers({0, 1, 2, 3, 4}), integers({5}, 7)},
       of([](X t) {
         return t[0].index({t[1], t[2]});
       }),
       0,
       1},
      {"a mask beside the cut", {x(0), mask({4})}, at_1, 0, 0},
      {"a mask over the cut: gathered", {x(0), mask({7, 4})}, at_0, 1},
      {"an index of no dimension", {x(0), {at::full({}, 2, at::kLong), {}}}, at_1, 0, 0},
      {"masked_select: gathered",
       {x(0), mask({4, 3})},
       of([](X t) { return t[0].masked_select(t[1]); }),
       1},
      {"nonzero: gathered", {x(0)}, of([](X t) { return t[0].gt(0).nonzero(); }), 1},
      {"unique: gathered",
       {integers({7, 3}, 4, {cut(0)})},
       of([](X t) { return std::get<0>(at::_unique2(t[0])); }),
       1},
  };
}

std::vector<Case> scatter_cases() {
  const auto x = [](int64_t dim) { return random({5, 4}, {cut(dim)}); };
  const auto put = of([](X t) { return t[0].scatter(1, t[1], t[2]); });
  const auto add = of([](X t) { return t[0].scatter_add(1, t[1], t[2]); });
  const auto add_ = of([](X t) { return t[0].clone().scatter_add_(1, t[1], t[2]); });
  return {
      {"beside the cut", {x(0), orders({5, 4}), x(0)}, put, 0, 0},
      {"a value beside the cut",
       {x(0), integers({5, 2}, 4)},
       of([](X t) { return t[0].scatter(1, t[1], 2.0); }),
       0,
       0},
      {"an empty rank", {random({1, 4}, {cut(0)}), orders({1, 4}), random({1, 4})}, put, 0, 0},
      {"sums beside the cut", {x(0), integers({5, 6}, 4), random({5, 6})}, add, 0, 0},
      {"along the cut: gathered", {x(1), integers({5, 6}, 4), random({5, 6})}, add, 1},
      {"a shorter index: gathered", {x(0), integers({3, 4}, 4), random({3, 4})}, add, 1},
      {"into a whole tensor by a cut index",
       {random({5, 4}), integers({5, 4}, 4, {cut(0)}), x(0)},
       add,
       0,
       0},
      {"in place beside the cut", {x(0), integers({5, 4}, 4), random({5, 4})}, add_, 0, 0},
      {"in place along the cut: gathered", {x(1), integers({5, 4}, 4), random({5, 4})}, add_, 1},
      {"in place, the source cut elsewhere: gathered", {x(0), integers({5, 4}, 4), x(1)}, add_, 1},
      {"largest, without the target",
       {x(0), integers({5, 4}, 4), random({5, 4})},
       of([](X t) { return t[0].scatter_reduce(1, t[1], t[2], "amax", false); }),
       0,
       0},
      {"products, in place",
       {x(0), integers({5, 4}, 4)},
       of([](X t) { return t[0].detach().clone().scatter_(1, t[1], 2.0, "multiply"); }),
       0,
       0},
  };
}

std::vector<Case> write_cases() {
  const auto x = [](int64_t dim) { return random({5, 4}, {cut(dim)}); };
  const auto add = of([](X t) { return t[0].index_add(1, t[1], t[2], 2.0); });
  const auto put = of([](X t) { return at::index_put(t[0], {t[1]}, t[2], /*accumulate=*/true); });
  return {
      {"index_add beside the cut", {x(0), integers({6}, 4), random({5, 6})}, add, 0, 0},
      {"index_add along the cut: gathered", {x(1), integers({6}, 4), random({5, 6})}, add, 1},
      {"index_copy beside the cut",
       {x(0), numbers({3, 1}), random({5, 2})},
       of([](X t) { return t[0].clone().index_copy_(1, t[1], t[2]); }),
       0,
       0},
      {"index_fill beside the cut",
       {x(0), numbers({3, 1})},
       of([](X t) { return t[0].index_fill(1, t[1], 2.0); }),
       0,
       0},
      {"index_fill with a tensor: copied",
       {x(0), numbers({3, 1}), random({})},
       of([](X t) { return t[0].index_fill(1, t[1], t[2]); }),
       0,
       1},
      {"index_reduce beside the cut",
       {x(0), integers({6}, 4), random({5, 6})},
       of([](X t) { return t[0].index_reduce(1, t[1], t[2], "amax"); }),
       0,
       0},
      {"index_put beside the cut", {x(1), integers({6}, 5), random({6, 4})}, put, 0, 0},
      {"index_put of one row for all", {x(1), integers({6}, 5), random({4})}, put, 0, 0},
      {"index_put along the cut: gathered", {x(0), integers({6}, 5), random({6, 4})}, put, 1},
      {"index_put of one value by a mask over the cut",
       {x(0), mask({5, 4})},
       of([](X t) { return t[0].clone().index_put_({t[1]}, 2.0); }),
       0,
       0},
      {"index_put by a mask of rows",
       {x(1), mask({5}), random({4})},
       of([](X t) { return t[0].clone().index_put_({t[1]}, t[2]); }),
       0,
       0},
      {"a cache written in place, heads cut",
       {random({2, 4, 6, 3}, {cut(1)}), numbers({2, 5}), random({2, 4, 2, 3}, {cut(1)})},
       of([](X t) {
         return t[0].clone().index_put_({Slice(), Slice(), t[1]}, t[2]);
       }),
       0,
       0},
      {"a whole tensor written by a cut one",
       {random({5, 4}), integers({6}, 5), random({6, 4}, {cut(1)})},
       of([](X t) { return (t[0] * 1).index_put_({t[1]}, t[2], /*accumulate=*/true); }),
       1},
      {"masked_scatter: gathered",
       {x(0), mask({5, 4}), random({20})},
       of([](X t) { return t[0].masked_scatter(t[1], t[2]); }),
       1},
  };
}

std::vector<Case> bag_cases() {
  const auto bags = [](int64_t mode, int64_t padding = -1) {
    return of([=](X t) {
      return std::get<0>(
          at::embedding_bag(t[0], t[1], t[2], false, mode, false, {}, false,
                            padding < 0 ? std::nullopt : std::optional<int64_t>(padding)));
    });
  };
  const auto weighted = of([](X t) {
    return std::get<0>(at::embedding_bag(t[0], t[1], t[2], false, 0, false, t[3], true));
  });
  const auto table = [](int64_t dim) { return random({7, 4}, {cut(dim)}); };
  // Ones that nobody looks up, or as padding.
  const auto infinite = [](at::IntArrayRef rows) {
    Operand of = random({9, 4}, {cut(0)});
    for (const int64_t row : rows) of.whole[row].fill_(std::numeric_limits<double>::infinity());
    return of;
  };
  const auto ids = [] { return numbers({1, 6, 3, 3, 0, 5, 2, 6}); };
  const auto offsets = [] { return numbers({0, 3, 3, 5}); };  // one bag of none
  return {
      {"sums, features cut", {table(1), ids(), offsets()}, bags(0), 0, 0},
      {"means, features cut", {table(1), ids(), offsets()}, bags(1), 0, 0},
      {"largest, features cut", {table(1), ids(), offsets()}, bags(2), 0, 0},
      {"sums, rows cut", {table(0), ids(), offsets()}, bags(0), 0, 1},
      {"means, rows cut", {table(0), ids(), offsets()}, bags(1), 0, 1},
      {"means, rows cut, padding", {table(0), ids(), offsets()}, bags(1, 3), 0, 1},
      {"sums, rows cut, padding", {table(0), ids(), offsets()}, bags(0, 6), 0, 1},
      {"sums, infinite rows",
       {infinite({4, 7, 8}), numbers({1, 6, 3, 5}), numbers({0, 3})},
       bags(0)},
      {"means, infinite padding", {infinite({3}), ids(), offsets()}, bags(1, 3), 0, 1},
      {"largest, rows cut: gathered", {table(0), ids(), offsets()}, bags(2), 1},
      {"rows in blocks", {random({8, 4}, {cut(0, 2)}), ids(), offsets()}, bags(0), 0, 1},
      {"an empty rank",
       {random({2, 4}, {cut(0)}), numbers({1, 0, 1}), numbers({0, 2})},
       bags(1),
       0,
       1},
      {"weights of samples, rows cut",
       {table(0), ids(), numbers({0, 3, 3, 8}), random({8})},
       weighted,
       0,
       2},
      {"weights of samples, features cut",
       {table(1), ids(), numbers({0, 3, 3, 8}), random({8})},
       weighted,
       0,
       1},
      {"indices cut: gathered", {table(1), integers({8}, 7, {cut(0)}), offsets()}, bags(0), 1},
  };
}

/// In a type whose kernels refuse what others take: a rank has no elements.
std::vector<Case> reduced_type_cases() {
  const auto reduce = [](bool in_place, const char* how, int64_t dim, bool include_self) {
    return of([=](X x) {
      const at::Tensor self = x[0].to(at::kBFloat16), source = x[2].to(at::kBFloat16);
      const at::Tensor result =
          in_place ? self.clone().index_reduce_(dim, x[1], source, how, include_self)
                   : at::index_reduce(self, dim, x[1], source, how, include_self);
      return result.to(at::kDouble);
    });
  };
  std::vector<Case> cases;
  for (const bool in_place : {false, true}) {
    for (const bool include_self : {false, true}) {
      for (const char* how : {"mean", "amax", "amin", "prod"}) {
        const std::string name =
            c10::str(how, in_place ? ", in place" : "", include_self ? ", with itself" : "");
        const std::vector<Placement> columns{cut(1)}, rows{cut(0)};
        cases.push_back({"index_reduce along rows, " + name,
                         {random({2, 7}, rows), numbers({4, 0, 2}), random({2, 3})},
                         reduce(in_place, how, 1, include_self),
                         -1});
        cases.push_back({"index_reduce along rows, source cut, " + name,
                         {random({2, 7}, rows), numbers({4, 0, 2}), random({2, 3}, rows)},
                         reduce(in_place, how, 1, include_self),
                         -1});
        cases.push_back({"index_reduce along columns, " + name,
                         {random({7, 2}, columns), numbers({4, 0, 2}), random({3, 2}, columns)},
                         reduce(in_place, how, 0, include_self),
                         -1});
      }
    }
  }
  return cases;
}

class RulesIndex : public testing::TestWithParam<int> {};

TEST_P(RulesIndex, Gather) {
  expect({GetParam()}, gather_cases());
}
TEST_P(RulesIndex, Index) {
  expect({GetParam()}, index_cases());
}
TEST_P(RulesIndex, Scatter) {
  expect({GetParam()}, scatter_cases());
}
TEST_P(RulesIndex, Write) {
  expect({GetParam()}, write_cases());
}
TEST_P(RulesIndex, WriteInAReducedType) {
  expect({GetParam()}, reduced_type_cases());
}
TEST_P(RulesIndex, Bags) {
  expect({GetParam()}, bag_cases());
}
INSTANTIATE_TEST_SUITE_P(Ranks, RulesIndex, testing::Values(2, 3));

TEST(RulesIndex, TwoAxes) {
  const auto gather = of([](X x) { return x[0].gather(1, x[1]); });
  expect({2, 2}, {
                     {"gather, rows and columns: summed over one",
                      {random({5, 9}, {cut(0), cut(1)}), integers({5, 1}, 9)},
                      gather,
                      0,
                      1},
                     {"gather, columns on both axes: gathered",
                      {random({5, 9}, {cut(1), cut(1)}), integers({5, 1}, 9)},
                      gather,
                      1},
                     {"index, two dimensions untouched",
                      {random({5, 4, 3}, {cut(0), cut(2)}), integers({6}, 4)},
                      of([](X x) {
                        return x[0].index({Slice(), x[1]});
                      }),
                      0,
                      0},
                     {"scatter_add_, rows, columns on the other axis: gathered",
                      {random({5, 4}, {cut(0), cut(1)}), integers({5, 4}, 4), random({5, 4})},
                      of([](X x) { return x[0].clone().scatter_add_(1, x[1], x[2]); }),
                      1},
                     {"bags, rows and features",
                      {random({7, 4}, {cut(0), cut(1)}), integers({8}, 7), numbers({0, 3})},
                      of([](X x) { return std::get<0>(at::embedding_bag(x[0], x[1], x[2])); }),
                      0,
                      1},
                 });
}

/// An index that no rank holds must not count as nothing.
TEST(RulesIndex, IndicesOutOfRangeAreRefused) {
  on_ranks({2}, [](const oslo::MeshPtr& mesh) {
    const at::Tensor table = oslo::distribute(at::randn({5, 4}), mesh, {cut(0)});
    const at::Tensor wrong = at::tensor({1, 5}, at::kLong);
    EXPECT_THROW(table.index_select(0, wrong), c10::IndexError);
    EXPECT_THROW(table.index({at::tensor({1, -6}, at::kLong)}), c10::IndexError);
    EXPECT_THROW(table.gather(0, wrong.view({2, 1}).expand({2, 4})), c10::Error);
    EXPECT_THROW(at::embedding_bag(table, wrong, at::zeros({1}, at::kLong)), c10::IndexError);
  });
}

}  // namespace
}  // namespace rule_case
