// Attention: every kind of mask, with and without dropout, grouped queries, scales, types, and
// every dimension of every operand cut, against plain scaled_dot_product_attention.
#include <limits>

#include "tests/support/own_draws.h"
#include "tests/support/rule_case.h"

namespace rule_case {
namespace {

constexpr int64_t kBatch = 3, kQueries = 5, kKeys = 7, kFeatures = 4, kValues = 6;

/// What attention is told beside its tensors.
struct Setting {
  at::ScalarType type = at::kDouble;
  double dropout = 0;
  bool grouped = false;
  std::optional<double> scale = std::nullopt;

  int64_t heads() const { return grouped ? 6 : 5; }
  int64_t key_heads() const { return grouped ? 3 : 5; }
  std::string text() const {
    return c10::str(at::toString(type), dropout > 0 ? ", dropout" : "", grouped ? ", grouped" : "",
                    scale ? c10::str(", scale ", *scale) : "");
  }
};

enum class Content { truth, number, constant_number, float_number };

/// A mask, by its letters: those of (batch, heads, queries, keys) that it has more than one of.
struct Mask {
  std::string name;
  Content content = Content::truth;
  std::string dims = {};  ///< "", for none
  bool causal = false;
  bool dead_row = false;  ///< a query that may look at nothing
};

std::vector<Mask> masks() {
  std::vector<Mask> all{{"no mask"}, {"causal", {}, "", true}};
  for (const char* dims : {"qk", "b11k", "1hqk", "bhqk"}) {
    for (const bool dead : {false, true}) {
      if (dead && dims[0] != 'q' && dims[1] != '1') continue;
      const std::string text = c10::str(" ", dims, dead ? ", a row without keys" : "");
      all.push_back({"truth" + text, Content::truth, dims, false, dead});
      all.push_back({"numbers" + text, Content::number, dims, false, dead});
    }
    all.push_back({c10::str("constant ", dims), Content::constant_number, dims});
    all.push_back({c10::str("in float ", dims), Content::float_number, dims});
  }
  return all;
}

at::Tensor made(const Mask& mask, const Setting& setting) {
  std::vector<int64_t> sizes;
  for (const char letter : mask.dims) {
    sizes.push_back(letter == 'b'   ? kBatch
                    : letter == 'h' ? setting.heads()
                    : letter == 'q' ? kQueries
                    : letter == 'k' ? kKeys
                                    : 1);
  }
  at::Tensor allowed = at::rand(sizes).gt(0.4);
  allowed.select(-1, 2).fill_(true);
  if (mask.dead_row) allowed.select(-2, 0).fill_(false);
  if (mask.content == Content::truth) return allowed;
  at::Tensor numbers = at::randn(sizes, at::kDouble);
  if (mask.dead_row) {
    numbers.masked_fill_(allowed.logical_not(), -std::numeric_limits<double>::infinity());
  }
  return numbers.to(mask.content == Content::float_number ? at::kFloat : setting.type);
}

/// Which dimension of (q, k, v, mask) is cut; of the mask the one of the same letter.
struct Cutting {
  std::string name;
  std::array<int, 3> dims;
  char letter = 0;  ///< of the mask
};

constexpr std::array<int, 3> kWhole{-1, -1, -1};

std::vector<Cutting> cuttings() {
  return {{"batch", {0, 0, 0}, 'b'},         {"heads", {1, 1, 1}, 'h'},
          {"queries", {2, -1, -1}, 'q'},     {"keys", {-1, 2, 2}, 'k'},
          {"features", {3, 3, -1}},          {"values", {-1, -1, 3}},
          {"heads of q", {1, -1, -1}},       {"heads of k", {-1, 1, -1}},
          {"heads of v", {-1, -1, 1}},       {"batch of k", {-1, 0, -1}},
          {"the mask's batch", kWhole, 'b'}, {"the mask's heads", kWhole, 'h'},
          {"the mask's keys", kWhole, 'k'}};
}

Operand operand(std::vector<int64_t> sizes, const Setting& setting, int dim, int64_t unit) {
  return {at::randn(sizes, at::kDouble).to(setting.type),
          dim < 0 ? std::vector<Placement>() : std::vector<Placement>{cut(dim, 1, unit)}};
}

std::optional<Case> case_of(const Mask& mask, const Setting& setting, const Cutting& how) {
  const int64_t ratio = setting.heads() / setting.key_heads();
  const auto unit = [&](int dim) { return dim == 1 ? ratio : 1; };
  Case test{mask.name + ", " + setting.text() + ", cut: " + how.name,
            {operand({kBatch, setting.heads(), kQueries, kFeatures}, setting, how.dims[0],
                     unit(how.dims[0])),
             operand({kBatch, setting.key_heads(), kKeys, kFeatures}, setting, how.dims[1], 1),
             operand({kBatch, setting.key_heads(), kKeys, kValues}, setting, how.dims[2], 1)},
            {}};
  at::Tensor constant;
  const bool mask_alone = how.dims == kWhole;
  bool any = !mask_alone;
  if (!mask.dims.empty()) {
    Operand given{made(mask, setting), {}};
    const size_t at = how.letter == 0 ? std::string::npos : mask.dims.find(how.letter);
    if (at != std::string::npos) {
      given.placements = {cut(static_cast<int64_t>(at), 1, how.letter == 'h' ? ratio : 1)};
      any = true;
    }
    if (mask.content == Content::constant_number) {
      if (mask_alone) return {};
      constant = given.whole;
    } else {
      test.operands.push_back(std::move(given));
    }
  }
  if (!any) return {};
  test.function = [=](X x) -> Tensors {
    const oslo::test::OwnDraws draws(7);
    const at::Tensor given = constant.defined() ? constant : operand_or_none(x, 3);
    return {at::scaled_dot_product_attention(
        x[0], x[1], x[2], given.defined() ? std::optional(given) : std::nullopt, setting.dropout,
        mask.causal, setting.scale, setting.grouped)};
  };
  // Without dropout the kernel below needs whole rows; by its parts everything stays cut. A mask
  // that is added to whole scores is gathered, and so are pieces that are no whole groups.
  const bool pieces_fit = !mask_alone && !(setting.grouped && how.name.starts_with("heads of"));
  test.gathers = setting.dropout > 0 && pieces_fit ? 0 : -1;
  return test;
}

void expect_attention(int ranks, const std::vector<Setting>& settings) {
  at::manual_seed(3);
  std::vector<Case> cases;
  for (const Setting& setting : settings) {
    for (const Mask& mask : masks()) {
      for (const Cutting& how : cuttings()) {
        if (auto test = case_of(mask, setting, how)) cases.push_back(std::move(*test));
      }
    }
  }
  expect({ranks}, cases);
}

TEST(RulesAttention, MasksDropoutGroupsAndScalesOnTwoRanks) {
  expect_attention(2, {{at::kDouble, 0.0, false, 0.3},
                       {at::kDouble, 0.0, true},
                       {at::kDouble, 0.4, false},
                       {at::kDouble, 0.4, true, 0.3}});
}

/// Five heads or three over four ranks, and three rows of a batch: some have none.
TEST(RulesAttention, RanksWithoutHeadsOrRows) {
  expect_attention(4, {{at::kDouble, 0.4, true, -0.3}});
}

TEST(RulesAttention, MasksAndDropoutInOtherTypes) {
  expect_attention(
      2, {{at::kFloat, 0.4}, {at::kHalf, 0.0}, {at::kHalf, 0.4}, {at::kBFloat16, 0.4, true}});
}

/// Batch and heads, or the heads alone, by both axes of a mesh.
TEST(RulesAttention, OnTwoAxes) {
  at::manual_seed(3);
  const Setting setting{at::kDouble, 0.4};
  std::vector<Case> cases;
  for (const Mask& mask : masks()) {
    for (const std::vector<Placement>& placements :
         {std::vector<Placement>{cut(0), cut(1)}, {cut(1), cut(1)}, {cut(0), whole()}}) {
      auto test = case_of(mask, setting, {"batch", {0, 0, 0}});
      for (size_t i = 0; i < 3; ++i) test->operands[i].placements = placements;
      test->name += c10::str(" and ", placements[1].dim());
      cases.push_back(std::move(*test));
    }
  }
  expect({2, 2}, cases);
}

TEST(RulesAttention, WhatOneDeviceRefusesIsRefused) {
  on_ranks({2}, [](const oslo::MeshPtr& mesh) {
    const at::Tensor q = oslo::distribute(at::ones({2, 4, 3, 4}), mesh, {cut(1)});
    const at::Tensor truth = at::ones({3, 3}, at::kBool);
    const auto attend = [&](const at::Tensor& mask, bool causal) {
      at::scaled_dot_product_attention(q, q, q, mask, 0.4, causal);
    };
    EXPECT_THROW(attend(truth, true), c10::Error);
    EXPECT_THROW(attend(truth.to(at::kLong), false), c10::Error);
    EXPECT_THROW(attend(truth.to(at::kDouble), false), c10::Error);
  });
}

/// The scores of what a query may not see are not there at all: its neighbours do not move it.
TEST(RulesAttention, WithACausalMaskOfTruthsTheFirstQuerySeesTheFirstKey) {
  at::manual_seed(3);
  const at::Tensor q = at::randn({1, 2, 6, 4});
  at::Tensor changed = q.clone();
  changed.select(2, 5).fill_(9);
  on_ranks({2}, [&](const oslo::MeshPtr& mesh) {
    const auto first = [&](const at::Tensor& x) {
      const oslo::test::OwnDraws draws(7);
      const at::Tensor cut_heads = oslo::distribute(x, mesh, {cut(1)});
      return oslo::full_tensor(at::scaled_dot_product_attention(cut_heads, cut_heads, cut_heads,
                                                                at::ones({6, 6}, at::kBool).tril(),
                                                                0.4))
          .select(2, 0);
    };
    EXPECT_TRUE(at::equal(first(q), first(changed)));
  });
}

}  // namespace
}  // namespace rule_case
