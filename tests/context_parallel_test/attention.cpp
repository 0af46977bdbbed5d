// Attention over a cut sequence in each of its forms: masks, positions, grouped heads, dropout, and
// what moves (acceptance cases K14 to K16, Q3 to Q5, Q8).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parallelizers/placement/carrier/access.h"
#include "tests/models/sequence_language_model.h"
#include "tests/support/counted_calls.h"
#include "tests/support/error_of.h"
#include "tests/support/own_draws.h"
#include "tests/support/tensor_ranks.h"

namespace sequence_model {
namespace {

using oslo::SequenceAttention;

std::string form(const std::string& name) {
  return R"("context_attention": ")" + name + '"';
}

struct Form {
  const char *name, *order;
  std::string config() const { return form(name) + ", " + in_order(order); }
};

class AttentionForms : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Each, AttentionForms,
                         ::testing::Values(Form{"gather", "contiguous"},
                                           Form{"ulysses", "contiguous"},
                                           Form{"ring", "contiguous"}, Form{"auto", "contiguous"},
                                           Form{"gather", "head_tail"},
                                           Form{"ulysses", "head_tail"}, Form{"ring", "head_tail"}),
                         [](const auto& info) {
                           return c10::str(info.param.name, "_", info.param.order);
                         });

/// Words of two documents see only those of their own.
Tensor two_documents(const Tensor& ids) {
  const Tensor document = torch::arange(ids.size(1)).ge(4);
  return document.unsqueeze(1).eq(document);
}

TEST_P(AttentionForms, Causal) {
  for (const int ranks : {2, 3}) {
    expect_equal({}, {.ranks = ranks, .config = GetParam().config(), .length = 10});
  }
}

TEST_P(AttentionForms, ByHand) {
  if (GetParam().name == std::string("ring")) return;  // refused, below
  Options o;
  o.by_hand = true;
  o.positions = Positions::alibi;
  expect_equal(o, {.ranks = 2, .config = GetParam().config(), .length = 9, .steps = 2});
  // A rank more than heads.
  expect_equal(o, {.ranks = 4, .config = GetParam().config(), .length = 9, .steps = 1});
  Options grouped = four_heads(/*by_hand=*/true);
  grouped.key_heads = 2;
  expect_equal(grouped, {.ranks = 3, .config = GetParam().config(), .length = 10, .steps = 1});
}

TEST_P(AttentionForms, FourRanksThatHoldUnequalParts) {
  Options o;
  o.hidden = 14;
  o.heads = o.key_heads = 7;
  expect_equal(o, {.ranks = 4, .config = GetParam().config(), .length = 9, .steps = 2});
}

TEST_P(AttentionForms, MasksOfDocumentsWindowsChunksAndBiases) {
  Options o;
  o.layers = 1;
  const auto distance = [](const Tensor& ids) {
    const Tensor at = torch::arange(ids.size(1));
    return at.unsqueeze(1) - at;
  };
  const std::vector<std::function<Tensor(const Tensor&)>> masks = {
      two_documents, [&](const Tensor& ids) { return distance(ids).lt(3); },
      [&](const Tensor& ids) {
        const Tensor chunk = torch::arange(ids.size(1)).div(4, "floor");
        return chunk.unsqueeze(1).eq(chunk);
      },
      [&](const Tensor& ids) { return distance(ids).to(torch::kDouble) * -0.25; }};
  for (const auto& mask : masks) {
    o.mask = mask;
    expect_equal(o, {.ranks = 3, .config = GetParam().config(), .length = 11, .steps = 1});
  }
}

TEST_P(AttentionForms, PositionsOfEveryKind) {
  Options o;
  o.layers = 1;
  for (const auto positions :
       {Positions::rotary_table, Positions::rotary_by_arange, Positions::alibi}) {
    o.positions = positions;
    expect_equal(o, {.ranks = 2, .config = GetParam().config(), .length = 9, .steps = 1});
  }
}

TEST_P(AttentionForms, FewerHeadsOfKeys) {
  Options o;
  o.hidden = 16;
  o.heads = 8;
  o.layers = 1;
  for (const int64_t key_heads : {8, 2, 1}) {
    o.key_heads = key_heads;
    if (key_heads == 1 && GetParam().name == std::string("ulysses")) continue;  // below
    expect_equal(o, {.ranks = 4, .config = GetParam().config(), .length = 9, .steps = 1});
  }
}

TEST_P(AttentionForms, DropoutDrawsAsOnOneDevice) {
  Options o;
  o.dropout = 0.3;
  oslo::run_as_threads(2, [&](oslo::World world) {
    at::set_num_threads(1);
    const auto make = [&] {
      LanguageModel model(o);
      model->to(torch::kFloat64);
      return model;
    };
    auto reference = parity::make_seeded(7, make), model = parity::make_seeded(7, make);
    const Case c{.config = GetParam().config()};
    const Tensor ids = words(c, o, 0);
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->loss(ids); };
    oslo::initialize(model, oslo::Config::parse(config_of(c)), how);
    const auto loss = [&](LanguageModel& of) {
      const oslo::test::OwnDraws draws(11);
      const Tensor value = of->loss(ids);
      value.backward();
      return value.detach();
    };
    parity::expect_close(oslo::full_tensor(loss(model)), loss(reference), "loss");
    parity::expect_gradients(*model, *reference);
  });
}

/// One product of attention on values that are cut along their positions.
struct Product {
  Tensor query, key, value, weights;
};

Product product(int64_t heads = 3, int64_t key_heads = 3) {
  return parity::make_seeded(5, [&] {
    const auto made = [&](int64_t h) {
      return torch::randn({2, h, 9, 4}, torch::kDouble).set_requires_grad(true);
    };
    return Product{made(heads), made(key_heads), made(key_heads),
                   torch::randn({2, heads, 9, 4}, torch::kDouble)};
  });
}

class WhatMoves : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Over, WhatMoves, ::testing::Values(2, 3, 4));

void expect_attention_and_its_messages(int ranks, const oslo::Placement& along) {
  oslo::test::on_ranks(ranks, [&](const oslo::MPU& mpu) {
    const auto mesh = mpu.tensor_mesh();
    auto& ledger = mpu.tensor_group()->ledger();
    const int64_t own = along.cut_of(9, ranks).local_size(mpu.get_tensor_parallel_rank());
    const int64_t elements = 2 * 3 * 4;  // beside one position
    for (const auto how :
         {SequenceAttention::gather, SequenceAttention::ulysses, SequenceAttention::ring}) {
      oslo::context_of(mesh)->sequence_attention = how;
      for (const bool causal : {false, true}) {
        Product one = product(), cut = product();
        const auto placed = [&](const Tensor& whole) {
          return oslo::distribute(whole, mesh, {along});
        };
        const Tensor q = placed(cut.query), k = placed(cut.key), v = placed(cut.value);
        const Tensor expected =
            at::scaled_dot_product_attention(one.query, one.key, one.value, {}, 0.0, causal);
        (expected * one.weights).sum().backward();
        ledger.clear();
        const Tensor found = at::scaled_dot_product_attention(q, k, v, {}, 0.0, causal);
        const auto forward = ledger.total();
        const int64_t sends = ledger.total("receive").calls;
        (found * cut.weights).sum().backward();
        const auto backward = ledger.total();
        parity::expect_close(oslo::full_tensor(found.detach()), expected.detach(), "attention");
        const auto after = ledger.total("receive").calls;
        parity::expect_close(cut.query.grad(), one.query.grad(), "gradient of the query");
        parity::expect_close(cut.key.grad(), one.key.grad(), "gradient of the key");
        parity::expect_close(cut.value.grad(), one.value.grad(), "gradient of the value");
        if (how == SequenceAttention::ring) {
          EXPECT_EQ(sends, ranks - 1);
          EXPECT_EQ(after, (ranks - 1) + (2 * ranks - 1));
          EXPECT_EQ(forward.elements, 2 * elements * (9 - own));
        } else if (how == SequenceAttention::gather) {
          EXPECT_EQ(forward.calls, 2);
          EXPECT_EQ(forward.elements, 2 * elements * (9 - own));
        } else {
          EXPECT_EQ(forward.calls, 4);
          EXPECT_GT(backward.calls, forward.calls);
        }
      }
    }
  });
}

TEST_P(WhatMoves, GradientsOfQueryKeyAndValueAndTheirMessages) {
  expect_attention_and_its_messages(GetParam(), oslo::Placement::shard(2));
}

TEST_P(WhatMoves, HeadAndTailTheSame) {
  expect_attention_and_its_messages(GetParam(), oslo::Placement::head_tail(2));
}

/// Attention by its products and its softmax, by letters or by matrices.
Tensor by_hand(const Product& of, bool by_letters) {
  if (by_letters) {
    const Tensor scores = torch::einsum("bhqd,bhkd->bhqk", {of.query, of.key}).softmax(-1);
    return torch::einsum("bhqk,bhkd->bhqd", {scores, of.value});
  }
  return of.query.matmul(of.key.transpose(-2, -1)).softmax(-1).matmul(of.value);
}

TEST_P(WhatMoves, ByHandOverHeads) {
  const int ranks = GetParam();
  oslo::test::on_ranks(ranks, [&](const oslo::MPU& mpu) {
    const auto mesh = mpu.tensor_mesh();
    auto& ledger = mpu.tensor_group()->ledger();
    oslo::context_of(mesh)->sequence_attention = SequenceAttention::ulysses;
    for (const auto& along : {oslo::Placement::shard(2), oslo::Placement::head_tail(2)}) {
      for (const bool by_letters : {false, true}) {
        Product one = product(), cut = product();
        const auto placed = [&](const Tensor& whole) {
          return oslo::distribute(whole, mesh, {along});
        };
        const Tensor expected = by_hand(one, by_letters);
        (expected * one.weights).sum().backward();
        ledger.clear();
        const Tensor found =
            by_hand({placed(cut.query), placed(cut.key), placed(cut.value), {}}, by_letters);
        EXPECT_EQ(ledger.total("all_to_all").calls, 4);
        EXPECT_EQ(ledger.total().calls, 4);
        (found * cut.weights).sum().backward();
        parity::expect_close(oslo::full_tensor(found.detach()), expected.detach(), "attention");
        parity::expect_close(cut.query.grad(), one.query.grad(), "gradient of the query");
        parity::expect_close(cut.key.grad(), one.key.grad(), "gradient of the key");
        parity::expect_close(cut.value.grad(), one.value.grad(), "gradient of the value");
      }
    }
  });
}

/// Products of a query and a key that a fused kernel computes, for each head.
double products_of_attention(const at::RecordFunction& call) {
  if (std::string(call.name()) != "aten::_scaled_dot_product_flash_attention_for_cpu") return 0;
  const auto inputs = call.inputs();
  const int64_t queries = inputs[0].toTensor().size(2), keys = inputs[1].toTensor().size(2);
  const bool triangle = inputs[4].toBool();
  return static_cast<double>(triangle ? queries * (keys + 1) / 2 : queries * keys);
}

/// Of causal attention over `ranks`, how many products of a query and a key each rank computes.
std::vector<int64_t> products_of_ranks(int ranks, SequenceAttention how,
                                       const oslo::Placement& along) {
  constexpr int64_t kLength = 24;
  std::vector<int64_t> found(ranks, 0);
  oslo::test::on_ranks(ranks, [&](const oslo::MPU& mpu) {
    const auto mesh = mpu.tensor_mesh();
    oslo::context_of(mesh)->sequence_attention = how;
    const auto made = [&] {
      return oslo::distribute(torch::ones({1, 3, kLength, 4}), mesh, {along});
    };
    const Tensor q = made(), k = made(), v = made();
    const oslo::test::CountedCalls<products_of_attention> counted;
    at::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
    found[mpu.get_tensor_parallel_rank()] = static_cast<int64_t>(counted.made());
  });
  return found;
}

TEST(ContextAttention, HeadAndTailGiveEachRankAsMuchToDo) {
  for (const auto how : {SequenceAttention::gather, SequenceAttention::ring}) {
    const auto uneven = products_of_ranks(3, how, oslo::Placement::shard(2));
    const auto even = products_of_ranks(3, how, oslo::Placement::head_tail(2));
    EXPECT_GT(uneven[2], 3 * uneven[0]);
    EXPECT_LE(even[2] - even[0], even[0] / 4) << even[0] << " " << even[1] << " " << even[2];
    EXPECT_LE(even[0], uneven[2] * 2 / 3);
  }
}

TEST(ContextAttention, AWordOfOneDocumentChangesItsOwnPositionsOnly) {
  for (const int ranks : {2, 4}) {
    for (const char* name : {"gather", "ulysses", "ring"}) {
      Options o;
      o.mask = two_documents;
      const std::string order = in_order(kOrders[ranks / 4]);
      oslo::run_as_threads(ranks, [&](oslo::World world) {
        at::set_num_threads(1);
        LanguageModel model = parity::make_seeded(7, [&] { return LanguageModel(o); });
        const Case c{.ranks = ranks, .config = form(name) + ", " + order, .length = 10};
        const Tensor ids = words(c, o, 0);
        Tensor other = ids.clone();
        other.index_put_({Slice(), 1}, (ids.index({Slice(), 1}) + 1) % o.words);
        const torch::NoGradGuard no_grad;
        const auto changed = [&] {
          const Tensor before = oslo::full_tensor(model->forward(ids));
          const Tensor after = oslo::full_tensor(model->forward(other));
          return (before - after).abs().sum(at::IntArrayRef{0, 2}).gt(0);
        };
        const Tensor expected = changed();
        EXPECT_EQ(expected.sum().item<int64_t>(), 3);  // positions 1 to 3
        oslo::InitializeOptions how;
        how.world = world;
        how.example_inputs = [&] { model->forward(ids); };
        oslo::initialize(model, oslo::Config::parse(config_of(c)), how);
        EXPECT_TRUE(torch::equal(changed(), expected)) << name;
      });
    }
  }
}

TEST(ContextAttention, HeadsThatCannotBeCutAreRefusedByName) {
  Options o;
  o.hidden = 16;
  o.heads = 8;
  o.key_heads = 1;
  const std::string error = oslo::test::error_of([&] {
    expect_equal(o, {.ranks = 2, .config = form("ulysses"), .example = false, .steps = 1});
  });
  EXPECT_THAT(error, ::testing::HasSubstr("'context_attention' = ulysses cuts heads"));
  EXPECT_THAT(error, ::testing::HasSubstr("set it to gather, ring or auto"));
}

TEST(ContextAttention, ARingOfScoresThatExistWholeIsRefusedByName) {
  Options o;
  o.by_hand = true;
  for (const bool example : {false, true}) {
    const std::string error = oslo::test::error_of(
        [&] { expect_equal(o, {.config = form("ring"), .example = example, .steps = 1}); });
    EXPECT_THAT(error, ::testing::HasSubstr("'context_attention' = ring takes"));
    EXPECT_THAT(error, ::testing::HasSubstr(
                           "queries of shape [2, 3, 9, 4] and keys of shape [2, 3, 4, 9]"));
    EXPECT_THAT(error, ::testing::HasSubstr("set it to gather, ulysses or auto"));
  }
}

TEST(ContextAttention, TwoModelsInOneProcess) {
  oslo::run_as_threads(4, [&](oslo::World world) {
    at::set_num_threads(1);
    Options small, large;
    small.hidden = 14;
    small.heads = small.key_heads = 7;
    large.hidden = 24;
    large.heads = large.key_heads = 12;
    const auto made = [&](const Options& o) {
      return parity::make_seeded(3, [&] {
        LanguageModel model(o);
        model->to(torch::kFloat64);
        return model;
      });
    };
    LanguageModel a = made(small), b = made(large), plain_a = made(small), plain_b = made(large);
    const Case c{.ranks = 4, .config = form("ulysses"), .length = 9};
    const Tensor ids = words(c, small, 0);
    const auto initialize = [&](LanguageModel& model) {
      oslo::InitializeOptions how;
      how.world = world;
      how.example_inputs = [&] { model->loss(ids); };
      return oslo::initialize(model, oslo::Config::parse(config_of(c)), how);
    };
    const auto first = initialize(a), second = initialize(b);
    const Tensor both = a->loss(ids) + b->loss(ids),
                 expected = plain_a->loss(ids) + plain_b->loss(ids);
    both.backward();
    expected.backward();
    parity::expect_close(oslo::full_tensor(both.detach()), expected.detach(), "loss");
    parity::expect_gradients(*a, *plain_a);
    parity::expect_gradients(*b, *plain_b);
  });
}

}  // namespace
}  // namespace sequence_model
