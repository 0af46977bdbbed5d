// GPT-2 with its residual stream cut along the sequence (Megatron-LM's sequence parallelism, arXiv
// 2205.05198): nothing but the results of the row layers and of the embedding is planned.
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "tests/models/gpt2.h"
#include "tests/support/parity.h"

namespace result_placements {
namespace {

using models::GPT2;
using models::GPT2Options;

constexpr const char* kSequencePlan = R"("plan": {
    "wte": "vocab scatter=-2", "wpe": "replicate",
    "h.*.attn.c_attn": "column blocks=3", "h.*.attn.c_proj": "row scatter=-2",
    "h.*.c_fc": "column", "h.*.c_proj": "row scatter=-2"})";

std::string config(int ranks, const std::string& plan = kSequencePlan) {
  return R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )" +
         std::to_string(ranks) + "}, " + plan + "}";
}

GPT2Options small(bool fused) {
  GPT2Options options;
  options.vocabulary = 35;
  options.hidden = 24;
  options.heads = 6;
  options.fused_attention = fused;
  return options;
}

torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& target) {
  return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}),
                                              target.view({-1}));
}

/// What a step moved, by collective and rule: calls and elements that this rank received.
using Moved = std::map<std::string, std::pair<int64_t, int64_t>>;

Moved moved_by(const oslo::ParallelModel& parallel) {
  Moved moved;
  for (const oslo::PlanTraffic& line : parallel.plan().traffic) {
    auto& [calls, elements] = moved[line.entry.operation + " " + line.entry.rule];
    calls += line.entry.traffic.calls;
    elements += line.entry.traffic.elements;
  }
  return moved;
}

void expect_as_one_device(int ranks, at::IntArrayRef tokens, bool fused,
                          const std::string& plan = kSequencePlan,
                          const std::function<void(oslo::InitializeOptions&)>& tweak = {}) {
  const GPT2Options options = small(fused);
  parity::Setup setup;
  setup.world = ranks;
  setup.config = config(ranks, plan);
  setup.example = true;
  setup.tweak = tweak;
  const auto batch = [&](int) {
    return parity::Batch{torch::randint(options.vocabulary, tokens),
                         torch::randint(options.vocabulary, tokens)};
  };
  parity::expect_parity(
      setup, [&] { return GPT2(options); }, batch, loss_of,
      [&](const parity::Outcome& outcome) {
        // The stream was cut: no product of matrices was summed on every rank.
        const Moved moved = moved_by(outcome.parallel);
        EXPECT_EQ(moved.count("all_reduce aten::matmul"), 0);
        EXPECT_EQ(moved.count("all_reduce aten::embedding"), 0);
        EXPECT_EQ(moved.count("reduce_scatter aten::matmul"), 1);
        EXPECT_TRUE(outcome.parallel.plan().gathers.empty());
      });
}

TEST(SequenceParallel, TwoRanks) {
  expect_as_one_device(2, {3, 8}, true);
}
TEST(SequenceParallel, TwoRanksOddSequenceAttentionByHand) {
  expect_as_one_device(2, {3, 7}, false);
}
TEST(SequenceParallel, ThreeRanksUnevenSequence) {
  expect_as_one_device(3, {2, 7}, true);
}
// One of three ranks has nothing of the stream.
TEST(SequenceParallel, MoreRanksThanTokens) {
  expect_as_one_device(3, {2, 2}, true);
}
TEST(SequenceParallel, ByPolicies) {
  expect_as_one_device(
      2, {3, 8}, true, R"("plan": {"wte": "vocab scatter=-2", "wpe": "replicate split=-2"})",
      [](oslo::InitializeOptions& how) {
        how.policies = {oslo::policy_for<models::GPT2AttentionImpl>(
                            {{"c_attn", "column blocks=3"}, {"c_proj", "row scatter=1"}}),
                        oslo::policy_for<models::GPT2BlockImpl>(
                            {{"c_fc", "column"}, {"c_proj", "row scatter=1"}})};
      });
}

/// In a block forward an all-gather before each column layer and a reduce-scatter after each row
/// layer, backward the other of each pair, and no all-reduce but the sums of the gradients of what
/// is whole while the stream is cut: the weights and biases of two norms and the biases of two row
/// layers.
TEST(SequenceParallel, MovesWhatMegatronMoves) {
  constexpr int64_t kBatch = 3, kTokens = 8, kRanks = 2;
  oslo::run_as_threads(kRanks, [&](oslo::World world) {
    at::set_num_threads(1);
    const GPT2Options options = small(true);
    GPT2 model = parity::make_seeded(7, [&] { return GPT2(options); });
    const torch::Tensor tokens = parity::make_seeded(8, [&] {
      return torch::randint(options.vocabulary, {kBatch, kTokens});
    });
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(tokens); };
    auto parallel = oslo::initialize(model, oslo::Config::parse(config(kRanks)), how);
    parallel.count([&] { loss_of(model->forward(tokens), tokens.flip(1)).backward(); });
    for (const oslo::PlanEntry& entry : parallel.plan().entries) {
      if (entry.parameter != "h.0.c_proj.weight") continue;
      EXPECT_EQ(entry.placement, "row: shard(1) scatter=-2");
    }
    const int64_t layers = options.layers, hidden = options.hidden;
    // Elements that a rank receives of the stream, of one vector, and of the positions.
    const int64_t stream = kBatch * kTokens * hidden * (kRanks - 1) / kRanks;
    const int64_t vector = 2 * hidden * (kRanks - 1) / kRanks;
    Moved moved = moved_by(parallel);
    moved.erase("all_reduce aten::cross_entropy_loss");
    // The head is a matmul, too: it gathers its input, and scatters its gradient.
    const int64_t products = 4 * layers + 1;
    EXPECT_EQ(
        moved,
        (Moved{
            {"all_gather aten::matmul", {products, products * stream}},
            {"reduce_scatter aten::matmul", {products, products * stream}},
            {"reduce_scatter aten::embedding", {1, stream}},
            {"all_gather aten::embedding", {1, stream}},
            {"all_gather aten::add.Tensor", {1, stream / kBatch}},
            {"all_reduce aten::layer_norm", {2 * (2 * layers + 1), 2 * (2 * layers + 1) * vector}},
            {"all_reduce aten::add_.Tensor", {2 * layers, 2 * layers * vector}},
        }));
  });
}

std::string refusal(const std::string& plan) {
  std::string text;
  oslo::run_as_threads(2, [&](oslo::World world) {
    GPT2 model = parity::make_seeded(7, [] { return GPT2(small(true)); });
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(torch::zeros({2, 6}, torch::kLong)); };
    try {
      oslo::initialize(model, oslo::Config::parse(config(2, "\"plan\": {" + plan + "}")), how);
    } catch (const std::exception& error) {
      if (world.rank() == 0) text = error.what();
      return;
    }
    ADD_FAILURE() << plan << " was taken";
  });
  return text;
}

using testing::HasSubstr;

TEST(SequenceParallel, RefusesByNameWhatNoResultHas) {
  EXPECT_THAT(refusal(R"("h.*.c_fc": "column scatter=-2")"),
              HasSubstr("\"column scatter=-2\": scatter=D gives each rank its part of a sum"));
  EXPECT_THAT(refusal(R"("h.*.c_proj": "row split=-2")"),
              HasSubstr("of row and vocab say scatter=D"));
  EXPECT_THAT(refusal(R"("h.*.c_proj": "row input=0")"), HasSubstr("use it with replicate"));
  EXPECT_THAT(refusal(R"("h.*.c_proj": "row scatter=x")"), HasSubstr("cannot read \"scatter=x\""));
  EXPECT_THAT(refusal(R"("h.*.c_proj": "row scatter=1 scatter=1")"), HasSubstr("scatter twice"));
  EXPECT_THAT(refusal(R"("h.0.c_fc": "vocab scatter=1")"),
              HasSubstr("h.0.c_fc is a linear layer, whose result vocab cuts"));
}

// wpe(arange(T)) has no batch.
TEST(SequenceParallel, RefusesASplitThatTheExampleShowsToBeMissing) {
  const std::string text = refusal(R"("wpe": "replicate split=-3")");
  EXPECT_THAT(text, HasSubstr("plan pattern \"wpe\": wpe has its result cut along dimension -3"));
  EXPECT_THAT(text, HasSubstr("[6, 24]"));
}

}  // namespace
}  // namespace result_placements
