#include "tests/support/rule_case.h"

// Scans, sorts, counts and losses.
namespace rule_case {
namespace {

using Unary = std::function<at::Tensor(const at::Tensor&, int64_t)>;

constexpr int64_t kNone = at::Reduction::None, kMean = at::Reduction::Mean,
                  kSum = at::Reduction::Sum;

Operand probabilities(at::IntArrayRef sizes, std::vector<oslo::Placement> placements = {}) {
  return {at::rand(sizes, at::kDouble) * 0.8 + 0.1, std::move(placements)};
}

/// Each operator beside the cut, where it is free, there with an empty rank, and along it.
std::vector<Case> scan_cases() {
  const auto x = [] { return random({5, 4}, {cut(0)}); };
  const std::vector<std::pair<std::string, Unary>> operators = {
      {"cummax", [](const auto& t, int64_t d) { return std::get<0>(t.cummax(d)); }},
      {"cummin", [](const auto& t, int64_t d) { return std::get<1>(t.cummin(d)); }},
      {"logcumsumexp", [](const auto& t, int64_t d) { return t.logcumsumexp(d); }},
      {"diff", [](const auto& t, int64_t d) { return t.diff(1, d, t, t); }},
      {"sort", [](const auto& t, int64_t d) { return std::get<0>(t.sort(d, true)); }},
      {"stable sort", [](const auto& t, int64_t d) { return std::get<1>(t.sort(true, d, false)); }},
      {"argsort", [](const auto& t, int64_t d) { return t.argsort(d); }},
      {"kthvalue", [](const auto& t, int64_t d) { return std::get<0>(t.kthvalue(1, d)); }},
      {"median", [](const auto& t, int64_t d) { return std::get<0>(t.median(d, true)); }},
      {"nanmedian", [](const auto& t, int64_t d) { return std::get<1>(t.nanmedian(d)); }},
      {"mode", [](const auto& t, int64_t d) { return std::get<0>(t.mode(d)); }},
      {"quantile", [](const auto& t, int64_t d) { return t.quantile(0.3, d); }},
      {"nanquantile",
       [](const auto& t, int64_t d) {
         return t.nanquantile(at::tensor({0.2, 0.9}, at::kDouble), d, true);
       }},
      {"aminmax", [](const auto& t, int64_t d) { return std::get<1>(t.detach().aminmax(d)); }},
  };
  std::vector<Case> cases;
  for (const auto& [name, function] : operators) {
    const auto along = [function](int64_t dim) {
      return of([=](X t) { return function(t[0], dim); });
    };
    cases.push_back({name + " beside the cut", {x()}, along(1), 0, 0});
    cases.push_back({name + ", an empty rank", {random({1, 4}, {cut(0)})}, along(1), 0, 0});
    const int64_t operands = name == "diff" ? 3 : 1;
    cases.push_back({name + " along the cut: gathered", {x()}, along(0), operands});
  }
  return cases;
}

/// Sums and products that every rank goes on from what lies before it.
std::vector<Case> cumulative_cases() {
  const auto x = [] { return random({5, 4}, {cut(0)}); };
  const auto sum = of([](X t) { return t[0].cumsum(0); });
  const auto product = of([](X t) { return t[0].cumprod(0); });
  Operand zeros = x();
  zeros.whole[1][2] = 0;
  zeros.whole[4][2] = 0;
  return {
      {"cumsum beside the cut", {x()}, of([](X t) { return t[0].cumsum(-1); }), 0, 0},
      {"cumsum along the cut", {x()}, sum, 0, 0},
      {"cumsum, an empty rank", {random({2, 3}, {cut(0)})}, sum, 0, 0},
      {"cumsum in blocks: gathered", {random({8, 3}, {cut(0, 2)})}, sum, 1},
      {"cumsum of integers", {integers({7}, 9, {cut(0)})}, sum, 0, 0},
      {"cumsum in another type",
       {x()},
       of([](X t) { return t[0].detach().to(at::kFloat).cumsum(0, at::kDouble); }),
       0,
       0},
      {"cumsum in place along the cut",
       {x()},
       of([](X t) { return t[0].clone().cumsum_(0); }),
       0,
       0},
      {"cumprod in place beside the cut",
       {x()},
       of([](X t) { return t[0].clone().cumprod_(1); }),
       0,
       0},
      {"cumprod along the cut", {x()}, product, 0, 0},
      {"cumprod, an empty rank", {random({2, 3}, {cut(0)})}, product, 0, 0},
      {"cumprod with zeros", {zeros}, product, 0, 0},
  };
}

std::vector<Case> counting_cases() {
  const Operand bounds{at::arange(8, at::kDouble) / 4 - 1, {}};
  const auto ids = [] { return integers({7}, 5, {cut(0)}); };
  return {
      {"one_hot", {ids()}, of([](X t) { return at::one_hot(t[0], 6); }), 0, 0},
      {"one_hot of the largest", {ids()}, of([](X t) { return at::one_hot(t[0]); }), 0, 1},
      {"bincount", {ids()}, of([](X t) { return at::bincount(t[0], {}, 3); }), 0, 2},
      {"bincount with weights",
       {ids(), random({7})},
       of([](X t) { return at::bincount(t[0], t[1].detach(), 9); }),
       0,
       2},
      {"bucketize",
       {random({5, 4}, {cut(1)}), bounds},
       of([](X t) { return at::bucketize(t[0], t[1]); }),
       0,
       0},
      {"searchsorted",
       {bounds, random({5, 4}, {cut(0)})},
       of([](X t) { return at::searchsorted(t[0], t[1]); }),
       0,
       0},
      {"searchsorted by row",
       {random({5, 9}, {cut(0)}), random({5, 4})},
       of([](X t) { return at::searchsorted(std::get<0>(t[0].sort(1)), t[1], false, true); }),
       0,
       0},
      {"searchsorted along the cut: gathered",
       {random({5, 9}, {cut(1)}), random({5, 4}), orders({5, 9})},
       of([](X t) {
         return at::searchsorted(t[0].detach() * 0, t[1], false, false, std::nullopt, t[2]);
       }),
       1},
      {"isin", {ids(), numbers({1, 4})}, of([](X t) { return at::isin(t[0], t[1]); }), 0, 0},
  };
}

std::vector<Case> elementwise_loss_cases() {
  using Loss = std::function<at::Tensor(X, int64_t)>;
  const std::vector<std::pair<std::string, Loss>> losses = {
      {"l1", [](X x, int64_t r) { return at::l1_loss(x[0], x[1], r); }},
      {"mse", [](X x, int64_t r) { return at::mse_loss(x[0], x[1], r); }},
      {"smooth_l1", [](X x, int64_t r) { return at::smooth_l1_loss(x[0], x[1], r, 0.3); }},
      {"huber", [](X x, int64_t r) { return at::huber_loss(x[0], x[1], r, 0.3); }},
      {"binary cross entropy",
       [](X x, int64_t r) { return at::binary_cross_entropy(x[0], x[1], {}, r); }},
      {"binary cross entropy with logits",
       [](X x, int64_t r) {
         const at::Tensor weight = x[2].detach();
         return at::binary_cross_entropy_with_logits(x[0], x[1], weight, weight, r);
       }},
      {"soft margin", [](X x, int64_t r) { return at::soft_margin_loss(x[0], x[1], r); }},
      {"kl_div", [](X x, int64_t r) { return at::kl_div(x[0], x[1], r); }},
      {"poisson",
       [](X x, int64_t r) { return at::poisson_nll_loss(x[0], x[1], true, false, 1e-8, r); }},
  };
  std::vector<Case> cases;
  for (const auto& [name, loss] : losses) {
    for (const int64_t reduction : {kNone, kMean, kSum}) {
      const auto function = of([=](X x) { return loss({x[0], x[1].detach(), x[2]}, reduction); });
      const int64_t reduces = reduction == kNone ? 0 : 1;
      cases.push_back({c10::str(name, ", reduction ", reduction),
                       {probabilities({5, 4}, {cut(0)}), probabilities({5, 4}), probabilities({4})},
                       function,
                       0,
                       reduces});
    }
    cases.push_back(
        {name + ", an empty rank, both cut",
         {probabilities({1, 4}, {cut(0)}), probabilities({1, 4}, {cut(0)}), probabilities({4})},
         of([=](X x) {
           return loss({x[0], x[1].detach(), x[2]}, kMean);
         }),
         0,
         1});
  }
  cases.push_back({"targets cut elsewhere: gathered",
                   {random({5, 4}, {cut(0)}), random({5, 4}, {cut(1)})},
                   of([](X x) { return at::huber_loss(x[0], x[1]); }),
                   1});
  cases.push_back({"cosine similarity of cut rows",
                   {random({5, 4}, {cut(0)}), random({5, 4})},
                   of([](X x) { return at::cosine_similarity(x[0], x[1]); }),
                   0,
                   0});
  cases.push_back(
      {"cosine embedding",
       {random({5, 4}, {cut(0)}), random({5, 4}), random({5})},
       of([](X x) { return at::cosine_embedding_loss(x[0], x[1], x[2].detach().sign(), 0.1); }),
       0,
       1});
  return cases;
}

std::vector<Case> nll_cases() {
  const auto loss = [](int64_t reduction, int64_t ignored = -100) {
    return of([=](X x) {
      const at::Tensor weight = x.size() > 2 ? x[2].detach() : at::Tensor();
      return at::nll_loss_nd(x[0], x[1], weight, reduction, ignored);
    });
  };
  const auto x = [](int64_t dim) { return random({5, 7}, {cut(dim)}); };
  const auto targets = [] { return integers({5}, 7); };
  return {
      {"classes cut, each", {x(1), targets()}, loss(kNone), 0, 1},
      {"classes cut, mean", {x(1), targets()}, loss(kMean, 3), 0, 1},
      {"classes cut, sum", {x(1), targets()}, loss(kSum), 0, 1},
      {"classes cut, weights", {x(1), targets(), probabilities({7})}, loss(kMean, 3), 0, 2},
      {"classes and weights cut",
       {x(1), targets(), probabilities({7}, {cut(0)})},
       loss(kMean),
       0,
       2},
      {"classes in blocks", {random({5, 8}, {cut(1, 2)}), targets()}, loss(kMean, 2), 0, 1},
      {"classes cut, an empty rank",
       {random({5, 2}, {cut(1)}), integers({5}, 2)},
       loss(kMean),
       0,
       1},
      {"rows cut, mean", {x(0), integers({5}, 7, {cut(0)})}, loss(kMean, 3), 0, 2},
      {"rows cut, each", {x(0), targets()}, loss(kNone), 0, 0},
      {"rows cut, weights", {x(0), targets(), probabilities({7})}, loss(kMean), 0, 2},
      {"all rows ignored", {x(1), {at::full({5}, 3, at::kLong), {}}}, loss(kSum, 3), 0, 1},
      {"one row", {random({7}, {cut(0)}), {at::full({}, 4, at::kLong), {}}}, loss(kMean), 0, 1},
      {"positions, classes cut",
       {random({2, 7, 3, 2}, {cut(1)}), integers({2, 3, 2}, 7)},
       loss(kMean, 3),
       0,
       1},
      {"positions, rows of them cut",
       {random({2, 7, 3, 2}, {cut(2)}), integers({2, 3, 2}, 7)},
       loss(kNone),
       0,
       0},
      {"cross entropy of probabilities, rows cut",
       {x(0), probabilities({5, 7}), probabilities({7})},
       of([](X t) {
         const at::Tensor weight = t[2].detach();
         return at::cross_entropy_loss(t[0], t[1].detach(), weight, kMean, -100, 0.1);
       }),
       0,
       1},
      {"cross entropy with class weights, rows cut",
       {x(0), targets(), probabilities({7})},
       of([](X t) { return at::cross_entropy_loss(t[0], t[1], t[2].detach()); }),
       0,
       2},
  };
}

/// The halves that exported graphs call.
std::vector<Case> nll_halves() {
  std::vector<Case> cases;
  for (const int64_t reduction : {kNone, kMean, kSum}) {
    for (const bool weighted : {false, true}) {
      const auto both = [=](X x) -> Tensors {
        const at::Tensor weight = weighted ? x[2].detach() : at::Tensor();
        const auto [loss, total] = at::nll_loss_forward(x[0], x[1], weight, reduction, 3);
        const at::Tensor gradient = reduction == kNone ? x[3] : x[3].sum();
        return {loss, total,
                at::nll_loss_backward(gradient, x[0].detach(), x[1], weight, reduction, 3,
                                      total.detach())};
      };
      const auto halves = [&](const std::string& name, Operand x, Operand targets,
                              int64_t classes) {
        const auto rows = targets.whole.sizes().vec();
        cases.push_back({c10::str(name, ", reduction ", reduction, weighted ? ", weighted" : ""),
                         {std::move(x), std::move(targets), probabilities({classes}), random(rows)},
                         both,
                         0});
      };
      halves("classes", random({5, 7}, {cut(1)}), integers({5}, 7), 7);
      halves("rows", random({5, 7}, {cut(0)}), integers({5}, 7, {cut(0)}), 7);
      halves("blocks", random({5, 8}, {cut(1, 2)}), integers({5}, 8), 8);
      halves("classes, an empty rank", random({5, 2}, {cut(1)}), integers({5}, 2), 2);
      halves("one row", random({7}, {cut(0)}), {at::full({}, 4, at::kLong), {}}, 7);
    }
  }
  return cases;
}

class RulesScanLoss : public testing::TestWithParam<int> {};

TEST_P(RulesScanLoss, Scans) {
  expect({GetParam()}, scan_cases());
}
TEST_P(RulesScanLoss, Cumulative) {
  expect({GetParam()}, cumulative_cases());
}
TEST_P(RulesScanLoss, Counting) {
  expect({GetParam()}, counting_cases());
}
TEST_P(RulesScanLoss, Losses) {
  expect({GetParam()}, elementwise_loss_cases());
}
TEST_P(RulesScanLoss, HalvesOfLogLikelihood) {
  expect({GetParam()}, nll_halves());
}
TEST_P(RulesScanLoss, LogLikelihood) {
  expect({GetParam()}, nll_cases());
}
INSTANTIATE_TEST_SUITE_P(Ranks, RulesScanLoss, testing::Values(2, 3));

TEST(RulesScanLoss, TwoAxes) {
  expect({2, 2}, {
                     {"nll, rows and classes",
                      {random({5, 7}, {cut(0), cut(1)}), integers({5}, 7)},
                      of([](X x) { return at::nll_loss_nd(x[0], x[1], {}, kMean, 3); }),
                      0,
                      3},
                     {"nll of log_softmax, rows and classes: as cross entropy",
                      {random({5, 7}, {cut(0), cut(1)}), integers({5}, 7)},
                      of([](X x) { return at::nll_loss_nd(x[0].log_softmax(1), x[1]); }),
                      0,
                      6},
                     {"log_softmax, classes on both axes, one rank without",
                      {random({5, 3}, {cut(1), cut(1)})},
                      of([](X x) { return x[0].log_softmax(1); }),
                      0,
                      6},
                     {"softmax in another type, on both axes",
                      {random({5, 7}, {cut(1), cut(1)})},
                      of([](X x) { return x[0].softmax(1, at::kDouble); }),
                      0,
                      6},
                     {"nll, classes on both axes: gathered",
                      {random({5, 7}, {cut(1), cut(1)}), integers({5}, 7)},
                      of([](X x) { return at::nll_loss_nd(x[0], x[1]); }),
                      1},
                     {"cumsum along one axis, beside the other",
                      {random({5, 4}, {cut(0), cut(1)})},
                      of([](X x) { return x[0].cumsum(0); }),
                      0,
                      0},
                     {"cumsum along both axes: gathered",
                      {random({5, 4}, {cut(0), cut(0)})},
                      of([](X x) { return x[0].cumsum(0); }),
                      1},
                     {"mean of a loss over both axes",
                      {random({5, 4}, {cut(0), cut(1)}), random({5, 4})},
                      of([](X x) { return at::smooth_l1_loss(x[0], x[1]); }),
                      0,
                      2},
                     {"sort beside both axes",
                      {random({5, 4, 3}, {cut(0), cut(1)})},
                      of([](X x) { return std::get<0>(x[0].sort(2)); }),
                      0,
                      0},
                 });
}

}  // namespace
}  // namespace rule_case
