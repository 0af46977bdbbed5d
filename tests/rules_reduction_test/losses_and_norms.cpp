// Cross entropy and other losses, and the norms over features.
#include <torch/autograd.h>

#include "tests/rules_reduction_test/rules_reduction.h"
#include "tests/support/rule_case.h"

namespace rule_case {
namespace {

/// Of a loss, and of how steep it is, so that its gradient is differentiated.
Tensors with_slope(const Tensors& x, double smoothing) {
  const at::Tensor loss =
      at::cross_entropy_loss(x[0], x[1], {}, at::Reduction::Mean, /*ignore_index=*/3, smoothing);
  const at::Tensor slope = torch::autograd::grad({loss.exp()}, {x[0]}, {}, /*retain_graph=*/true,
                                                 /*create_graph=*/true)[0];
  return {loss + slope.square().sum(), slope};
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
      {"classes cut, targets in bytes",
       {logits({cut(1)}), {integers({5}, 7).whole.to(at::kByte), {}}},
       loss(at::Reduction::Mean, 3),
       0,
       2},
      {"classes cut, targets in bytes, of log-probabilities",
       {logits({cut(1)}), {integers({5}, 7).whole.to(at::kByte), {}}},
       [](const Tensors& x) -> Tensors { return {at::nll_loss_nd(x[0], x[1])}; },
       0},
      {"classes cut, differentiated twice",
       {logits({cut(1)}), targets()},
       [](const Tensors& x) { return with_slope(x, 0); },
       0},
      {"classes cut, smoothing, differentiated twice",
       {logits({cut(1)}), targets()},
       [](const Tensors& x) { return with_slope(x, 0.1); },
       0},
      {"an empty rank, differentiated twice",
       {random({5, 1}, {cut(1)}), integers({5}, 1)},
       [](const Tensors& x) { return with_slope(x, 0.1); },
       0},
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
      {"class weights",
       {logits({cut(1)}), targets(), random({7})},
       [](const Tensors& x) -> Tensors {
         return {at::cross_entropy_loss(x[0], x[1], x[2].detach().abs())};
       },
       0},
      {"probabilities", {logits({cut(1)}), logits({})}, loss(at::Reduction::Mean), 0},
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

TEST_P(RulesReduction, Losses) {
  expect({GetParam()}, loss_cases());
}
TEST_P(RulesReduction, Normalizations) {
  expect({GetParam()}, normalization_cases());
}

/// An index that no rank holds must not count as nothing.
TEST(RulesReduction, IndicesOutOfRangeAreRefused) {
  on_ranks({2}, [](const oslo::MeshPtr& mesh) {
    const at::Tensor table = oslo::distribute(at::randn({5, 4}), mesh, {cut(0)});
    EXPECT_THROW(at::embedding(table, at::tensor({1, 5}, at::kLong)), c10::IndexError);
    const at::Tensor logits = oslo::distribute(at::randn({2, 5}), mesh, {cut(1)});
    EXPECT_THROW(at::cross_entropy_loss(logits, at::tensor({1, -3}, at::kLong)), c10::IndexError);
  });
}

}  // namespace
}  // namespace rule_case
