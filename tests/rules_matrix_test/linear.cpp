#include "tests/support/rule_case.h"

namespace rule_case {
namespace {

using std::nullopt;

const auto linear = [](const Tensors& x) -> Tensors { return {at::linear(x[0], x[1], x[2])}; };
const auto matmul = [](const Tensors& x) -> Tensors { return {x[0].matmul(x[1])}; };

std::vector<Case> linear_cases() {
  return {
      {"column: one all-reduce, of the input's gradient",
       {random({2, 3, 5}), random({7, 5}, {cut(0)}), random({7}, {cut(0)})},
       linear,
       0,
       1},
      {"row: one all-reduce, of the output; the bias is added once",
       {random({2, 3, 7}, {cut(2)}), random({5, 7}, {cut(1)}), random({5})},
       linear,
       0,
       1},
      {"batch cut, weight whole",
       {random({5, 3, 4}, {cut(0)}), random({7, 4}), random({7})},
       linear},
      {"batch cut, weight cut: the weight is gathered (ZeRO-3)",
       {random({5, 9, 4}, {cut(0)}), random({3, 4}, {cut(0)}), random({3})},
       linear,
       1},
      {"input cut on its features, weight whole",
       {random({2, 3, 7}, {cut(2)}), random({5, 7}), random({5})},
       linear,
       0,
       1},
      {"one row of weight, fewer than ranks",
       {random({2, 5}), random({1, 5}, {cut(0)}), random({1}, {cut(0)})},
       linear},
      {"units of three",
       {random({2, 5}), random({9, 5}, {cut(0, 1, 3)}), random({9})},
       linear,
       0,
       1},
      {"three blocks",
       {random({2, 5}), random({12, 5}, {cut(0, 3)}), random({12}, {cut(0, 3)})},
       linear,
       0,
       1},
      {"blocks on the features of both",
       {random({2, 12}, {cut(1, 3)}), random({5, 12}, {cut(1, 3)}), random({5})},
       linear,
       0,
       1},
      {"features cut into other pieces: exchanged",
       {random({2, 12}, {cut(1, 2)}), random({5, 12}, {cut(1, 3)}), random({5})},
       linear},
      {"without bias",
       {random({6, 5}), random({7, 5}, {cut(0)})},
       [](const Tensors& x) -> Tensors { return {at::linear(x[0], x[1])}; },
       0,
       1},
      {"one row of input", {random({5}), random({7, 5}, {cut(0)}), random({7})}, linear, 0, 1},
      {"two consumers of one input share the backward all-reduce",
       {random({4, 5}), random({7, 5}, {cut(0)}), random({6, 5}, {cut(0)})},
       [](const Tensors& x) -> Tensors {
         return {at::linear(x[0], x[1]), at::linear(x[0], x[2])};
       },
       0,
       1},
      {"as LibTorch's functional writes it",
       {random({2, 3, 5}), random({7, 5}, {cut(0)}), random({7}, {cut(0)})},
       [](const Tensors& x) -> Tensors { return {x[0].matmul(x[1].t()).add_(x[2])}; },
       0,
       1},
  };
}

std::vector<Case> matrix_cases() {
  const auto addmm = [](const Tensors& x) -> Tensors { return {at::addmm(x[0], x[1], x[2])}; };
  const auto scaled = [](const Tensors& x) -> Tensors {
    return {at::addmm(x[0], x[1], x[2], 0.5, 2.0)};
  };
  const auto no_bias = [](const Tensors& x) -> Tensors {
    return {at::addmm(x[0].detach() / 0.0, x[1], x[2], 0, 3.0).sigmoid()};
  };
  const auto mm = [](const Tensors& x) -> Tensors { return {x[0].mm(x[1])}; };
  const auto bmm = [](const Tensors& x) -> Tensors { return {x[0].bmm(x[1])}; };
  return {
      {"addmm, column",
       {random({7}, {cut(0)}), random({3, 5}), random({5, 7}, {cut(1)})},
       addmm,
       0,
       1},
      {"addmm, row",
       {random({7}), random({3, 5}, {cut(1)}), random({5, 7}, {cut(0)})},
       addmm,
       0,
       1},
      {"addmm, row, scaled",
       {random({3, 7}), random({3, 5}, {cut(1)}), random({5, 7}, {cut(0)})},
       scaled},
      {"addmm, beta 0 ignores the bias",
       {{at::zeros({7}, at::kDouble), {}}, random({3, 5}, {cut(1)}), random({5, 7}, {cut(0)})},
       no_bias},
      {"mm", {random({3, 5}), random({5, 7}, {cut(1)})}, mm, 0, 1},
      {"mm of a transposed weight",
       {random({3, 5}), random({7, 5}, {cut(0)})},
       [](const Tensors& x) -> Tensors { return {x[0].mm(x[1].t())}; },
       0,
       1},
      {"matmul, K cut on both sides",
       {random({2, 3, 5}, {cut(2)}), random({5, 7}, {cut(0)})},
       matmul,
       0,
       1},
      {"matmul, rows cut", {random({2, 5, 3}, {cut(1)}), random({3, 7})}, matmul, 0, 1},
      {"matmul, rows against columns: the smaller is gathered",
       {random({9, 5}, {cut(0)}), random({5, 3}, {cut(1)})},
       matmul,
       1},
      {"bmm, batch cut", {random({5, 2, 3}, {cut(0)}), random({5, 3, 4}, {cut(0)})}, bmm, 0, 0},
      {"bmm, batch cut on one side", {random({5, 2, 3}, {cut(0)}), random({5, 3, 4})}, bmm, 0, 0},
      {"bmm, an empty rank", {random({1, 2, 3}, {cut(0)}), random({1, 3, 4}, {cut(0)})}, bmm, 0, 0},
      {"bmm, K cut", {random({2, 3, 5}, {cut(2)}), random({2, 5, 4}, {cut(1)})}, bmm, 0, 1},
      {"batched, heads cut",
       {random({2, 5, 3, 4}, {cut(1)}), random({2, 5, 4, 3}, {cut(1)})},
       matmul,
       0,
       0},
      {"broadcast batch",
       {random({2, 5, 3, 4}, {cut(1)}), random({1, 5, 4, 3}, {cut(1)})},
       matmul,
       0,
       0},
      {"broadcast heads: the whole side is copied",
       {random({2, 5, 3, 4}, {cut(1)}), random({2, 1, 4, 3})},
       matmul,
       0,
       1},
      {"fewer batch dimensions", {random({5, 3, 4}), random({2, 5, 4, 3}, {cut(0)})}, matmul, 0, 1},
      {"matrix by batched", {random({3, 4}), random({5, 4, 3}, {cut(0)})}, matmul, 0, 1},
      {"matrix by batched, columns cut",
       {random({3, 4}), random({2, 4, 5}, {cut(2)})},
       matmul,
       0,
       1},
      {"vector by matrix", {random({4}), random({4, 5}, {cut(1)})}, matmul, 0, 1},
      {"vector by batched", {random({4}, {cut(0)}), random({2, 4, 5}, {cut(1)})}, matmul, 0, 1},
      {"matrix by vector, rows cut", {random({5, 4}, {cut(0)}), random({4})}, matmul, 0, 1},
      {"matrix by vector, K cut", {random({3, 5}, {cut(1)}), random({5}, {cut(0)})}, matmul, 0, 1},
      {"dot", {random({5}, {cut(0)}), random({5}, {cut(0)})}, matmul, 0, 1},
      {"baddbmm",
       {random({5, 2, 2}), random({5, 2, 3}, {cut(0)}), random({5, 3, 2}, {cut(0)})},
       [](const Tensors& x) -> Tensors { return {at::baddbmm(x[0], x[1], x[2])}; },
       0,
       0},
      {"einsum",
       {random({3, 5}, {cut(1)}), random({5, 4}, {cut(0)})},
       [](const Tensors& x) -> Tensors {
         return {at::einsum("ij,jk->ik", {x[0], x[1]})};
       }},
  };
}

std::vector<Case> embedding_cases() {
  const auto lookup = [](const Tensors& x) -> Tensors { return {at::embedding(x[0], x[1])}; };
  const auto padded = [](const Tensors& x) -> Tensors { return {at::embedding(x[0], x[1], 6)}; };
  const auto frequent = [](const Tensors& x) -> Tensors {
    return {at::embedding(x[0], x[1], -1, /*scale_grad_by_freq=*/true)};
  };
  return {
      {"vocabulary cut", {random({7, 4}, {cut(0)}), integers({2, 5}, 7)}, lookup, 0, 1},
      {"vocabulary cut, an empty shard",
       {random({1, 4}, {cut(0)}), integers({2, 5}, 1)},
       lookup,
       0,
       1},
      {"hidden cut", {random({7, 5}, {cut(1)}), integers({2, 5}, 7)}, lookup, 0, 0},
      {"padding row in the last shard",
       {random({7, 4}, {cut(0)}), integers({4, 9}, 7)},
       padded,
       0,
       1},
      {"padding row, hidden cut", {random({7, 4}, {cut(1)}), integers({4, 9}, 7)}, padded, 0, 0},
      {"indices cut, table whole", {random({7, 4}), integers({5, 3}, 7, {cut(0)})}, lookup, 0, 1},
      {"indices cut, table cut: the table is gathered",
       {random({7, 4}, {cut(0)}), integers({5, 3}, 7, {cut(0)})},
       lookup,
       1},
      {"vocabulary cut in blocks: gathered",
       {random({6, 4}, {cut(0, 2, 1)}), integers({5}, 6)},
       lookup,
       1},
      {"gradients by frequency", {random({7, 4}, {cut(0)}), integers({5, 3}, 7)}, frequent, 1},
      {"gradients by frequency, indices cut",
       {random({7, 4}), integers({5, 3}, 7, {cut(0)})},
       frequent,
       1},
  };
}

std::vector<Case> attention_cases() {
  const auto plain = [](const Tensors& x) -> Tensors {
    return {at::scaled_dot_product_attention(x[0], x[1], x[2])};
  };
  const auto causal = [](const Tensors& x) -> Tensors {
    return {at::scaled_dot_product_attention(x[0], x[1], x[2], nullopt, 0.0, true, 0.25)};
  };
  const auto masked = [](const Tensors& x) -> Tensors {
    return {at::scaled_dot_product_attention(x[0], x[1], x[2], x[3])};
  };
  const auto grouped = [](const Tensors& x) -> Tensors {
    return {at::scaled_dot_product_attention(x[0], x[1], x[2], nullopt, 0.0, true, nullopt, true)};
  };
  const auto grouped_masked = [](const Tensors& x) -> Tensors {
    return {at::scaled_dot_product_attention(x[0], x[1], x[2], x[3], 0.0, false, nullopt, true)};
  };
  const auto q = [](std::vector<Placement> placements, int64_t heads = 5) {
    return random({2, heads, 3, 4}, std::move(placements));
  };
  return {
      {"heads cut", {q({cut(1)}), q({cut(1)}), q({cut(1)})}, plain, 0, 0},
      {"heads cut, causal, scaled", {q({cut(1)}), q({cut(1)}), q({cut(1)})}, causal, 0, 0},
      {"batch cut", {q({cut(0)}), q({cut(0)}), q({cut(0)})}, causal, 0, 0},
      {"a rank without heads", {q({cut(1)}, 1), q({cut(1)}, 1), q({cut(1)}, 1)}, causal, 0, 0},
      {"sequence cut: by heads, or with all keys",
       {q({cut(2)}), q({cut(2)}), q({cut(2)})},
       causal,
       0,
       nullopt},
      {"query cut, keys whole", {q({cut(1)}), q({}), q({})}, plain, 0, 0},
      {"boolean mask over (q, k)",
       {q({cut(1)}), q({cut(1)}), q({cut(1)}), {at::ones({3, 3}, at::kBool).tril(), {}}},
       masked,
       0,
       0},
      {"boolean mask, heads stretch",
       {q({cut(1)}), q({cut(1)}), q({cut(1)}), {at::ones({2, 1, 3, 3}, at::kBool).tril(), {}}},
       masked,
       0,
       0},
      {"float mask with a gradient",
       {q({cut(1)}), q({cut(1)}), q({cut(1)}), random({2, 1, 3, 3})},
       masked,
       0,
       1},
      {"float mask a head",
       {q({cut(1)}), q({cut(1)}), q({cut(1)}), random({1, 5, 3, 3}, {cut(1)})},
       masked,
       0,
       0},
      {"float mask with a gradient, a rank without heads",
       {q({cut(1)}, 1), q({cut(1)}, 1), q({cut(1)}, 1), random({2, 1, 3, 3})},
       masked,
       0,
       1},
      {"grouped queries, proportional pieces",
       {q({cut(1, 1, 2)}, 6), q({cut(1)}, 3), q({cut(1)}, 3)},
       grouped,
       0,
       0},
      {"grouped queries, other pieces: exchanged",
       {q({cut(1, 4)}, 12), q({cut(1)}, 6), q({cut(1)}, 6)},
       grouped,
       0,
       nullopt},
      {"grouped queries, float mask a head",
       {q({cut(1, 1, 2)}, 6), q({cut(1)}, 3), q({cut(1)}, 3), random({6, 3, 3})},
       grouped_masked,
       0,
       0},
      {"grouped queries, a rank without heads",
       {q({cut(1, 1, 2)}, 2), q({cut(1)}, 1), q({cut(1)}, 1)},
       grouped,
       0,
       0},
      {"three dimensions",
       {random({5, 3, 4}, {cut(0)}), random({5, 3, 4}, {cut(0)}), random({5, 3, 4}, {cut(0)})},
       causal,
       0,
       0},
  };
}

class RulesLinear : public testing::TestWithParam<int> {};

TEST_P(RulesLinear, Linear) {
  expect({GetParam()}, linear_cases());
}
TEST_P(RulesLinear, Matrices) {
  expect({GetParam()}, matrix_cases());
}
TEST_P(RulesLinear, Embedding) {
  expect({GetParam()}, embedding_cases());
}
TEST_P(RulesLinear, Attention) {
  expect({GetParam()}, attention_cases());
}
INSTANTIATE_TEST_SUITE_P(Ranks, RulesLinear, testing::Values(2, 3));

TEST(RulesLinear, TwoAxes) {
  const auto addmm = [](const Tensors& x) -> Tensors { return {at::addmm(x[0], x[1], x[2])}; };
  const auto attention = [](const Tensors& x) -> Tensors {
    return {at::scaled_dot_product_attention(x[0], x[1], x[2], nullopt, 0.0, true)};
  };
  const auto lookup = [](const Tensors& x) -> Tensors { return {at::embedding(x[0], x[1])}; };
  expect({2, 2},
         {
             {"2D linear: batch and features by weight on both",
              {random({3, 2, 5}, {cut(0), cut(2)}), random({7, 5}, {cut(0), cut(1)}), random({7})},
              linear,
              1},
             {"batch by column",
              {random({3, 2, 5}, {cut(0), whole()}), random({7, 5}, {whole(), cut(0)}),
               random({7}, {whole(), cut(0)})},
              linear,
              0,
              nullopt},
             {"weight rows cut on both axes",
              {random({3, 5}), random({7, 5}, {cut(0), cut(0)}), random({7}, {cut(0), cut(0)})},
              linear,
              0,
              nullopt},
             {"addmm, rows and columns",
              {random({7}), random({3, 5}, {cut(0), whole()}), random({5, 7}, {whole(), cut(1)})},
              addmm},
             {"matmul, K cut on both axes",
              {random({3, 5}, {cut(1), cut(1)}), random({5, 4}, {cut(0), cut(0)})},
              matmul},
             {"batch and heads",
              {random({3, 5, 2, 4}, {cut(0), cut(1)}), random({3, 5, 2, 4}, {cut(0), cut(1)}),
               random({3, 5, 2, 4}, {cut(0), cut(1)})},
              attention,
              0,
              0},
             {"vocabulary and hidden",
              {random({7, 5}, {cut(0), cut(1)}), integers({4, 2}, 7)},
              lookup},
             {"batch and vocabulary",
              {random({7, 5}, {whole(), cut(0)}), integers({5, 2}, 7, {cut(0), whole()})},
              lookup},
             {"vocabulary on both axes",
              {random({7, 5}, {cut(0), cut(0)}), integers({4, 2}, 7)},
              lookup,
              0,
              2},
         });
}

/// T9 of the reference frameworks: each rank's logits are 0 to 7, tiled; the losses are known.
TEST(RulesLinear, VocabularyParallelCrossEntropyOfKnownLogits) {
  on_ranks({4}, [](const oslo::MeshPtr& mesh) {
    const at::Tensor part = at::arange(8, at::kFloat).repeat({16, 4});
    const at::Tensor logits = oslo::from_local(part, mesh, {cut(1)}, {16, 128});
    const at::Tensor targets = at::arange(0, 32, 2, at::kLong);
    const int64_t before = all_reduces(*mesh);
    const at::Tensor loss = at::cross_entropy_loss(logits, targets, {}, at::Reduction::None);
    EXPECT_EQ(all_reduces(*mesh) - before, 2);
    EXPECT_EQ(context_of(mesh)->gathers().calls(), 0);
    const at::Tensor expected =
        at::tensor({10.2309, 8.2309, 6.2309, 4.2309}, at::kFloat).repeat({4});
    EXPECT_TRUE(at::allclose(loss, expected, 0, 1e-4)) << loss;
  });
}

}  // namespace
}  // namespace rule_case
