// The plan: what structure, policies and patterns decide, how it is told, and what the example
// leaves behind.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/models/bert.h"
#include "tests/models/gpt2.h"
#include "tests/models/llama.h"
#include "tests/models/small.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using models::Containers;
using models::Tied;
using parity::make_seeded;
using parity::tensor_parallel;
using test::error_of;
using test::expect_untouched;
using test::in;
using testing::AllOf;
using testing::HasSubstr;

const std::string kTwo = tensor_parallel(2);

/// Rank 0 of a pretended world of two: enough where nothing is computed.
InitializeOptions dry() {
  return in(World::fake(0, 2));
}

const PlanEntry& entry_of(const Plan& plan, const std::string& parameter) {
  for (const PlanEntry& entry : plan.entries) {
    if (entry.parameter == parameter) return entry;
  }
  throw std::out_of_range(parameter);
}

std::string placement_of(const Plan& plan, const std::string& parameter) {
  return entry_of(plan, parameter).placement;
}

using Placements = std::vector<std::pair<std::string, std::string>>;

void expect_placements(const Plan& plan, const Placements& expected) {
  for (const auto& [parameter, placement] : expected) {
    EXPECT_EQ(placement_of(plan, parameter), placement) << parameter;
  }
}

TEST(StructuralPlan, Gpt2) {
  const auto plan =
      initialize(models::GPT2(models::GPT2Options()), Config::parse(kTwo), dry()).plan();
  expect_placements(plan, {{"wte.weight", "vocab: shard(0)"},
                           {"wpe.weight", "replicate"},
                           {"h.1.attn.c_attn.weight", "column: shard(0, blocks 3)"},
                           {"h.1.attn.c_attn.bias", "column: shard(0, blocks 3)"},
                           {"h.1.attn.c_proj.weight", "row: shard(1)"},
                           {"h.1.attn.c_proj.bias", "replicate"},
                           {"h.1.c_fc.weight", "column: shard(0)"},
                           {"h.1.c_proj.weight", "row: shard(1)"},
                           {"ln_f.weight", "replicate"}});
}

TEST(StructuralPlan, Bert) {
  const auto plan =
      initialize(models::Bert(models::BertOptions()), Config::parse(kTwo), dry()).plan();
  const std::string layer = "encoder.layer_1.parts.";
  expect_placements(plan, {{"words.weight", "vocab: shard(0)"},
                           {"positions.weight", "replicate"},
                           {layer + "attention.query.weight", "column: shard(0)"},
                           {layer + "attention.value.bias", "column: shard(0)"},
                           {layer + "attention.dense.weight", "row: shard(1)"},
                           {layer + "intermediate.weight", "column: shard(0)"},
                           {layer + "output.weight", "row: shard(1)"},
                           {"pooler.weight", "column: shard(0)"}});
}

TEST(StructuralPlan, Llama) {
  const auto plan =
      initialize(models::Llama(models::LlamaOptions()), Config::parse(kTwo), dry()).plan();
  const std::string layer = "layers.1.";
  expect_placements(plan, {{"embed_tokens.weight", "vocab: shard(0)"},
                           {layer + "self_attn.q_proj.weight", "column: shard(0)"},
                           {layer + "self_attn.k_proj.weight", "column: shard(0)"},
                           {layer + "self_attn.o_proj.weight", "row: shard(1)"},
                           {layer + "gate_proj.weight", "column: shard(0)"},
                           {layer + "down_proj.weight", "row: shard(1)"},
                           {layer + "input_norm.weight", "replicate"},
                           {"lm_head.weight", "column: shard(0)"}});
}

TEST(StructuralPlan, ConvolutionsByOutputChannelsButForPatches) {
  const auto made = [](int64_t in, int64_t kernel, int64_t stride, int64_t groups = 1) {
    return torch::nn::Conv2d(
        torch::nn::Conv2dOptions(in, 16, kernel).stride(stride).groups(groups));
  };
  torch::nn::Sequential model({{"patches", torch::nn::AnyModule(made(3, 4, 4))},
                               {"overlapping", torch::nn::AnyModule(made(3, 4, 2))},
                               {"features", torch::nn::AnyModule(made(8, 2, 2))},
                               {"pointwise", torch::nn::AnyModule(made(3, 1, 1))},
                               {"depthwise", torch::nn::AnyModule(made(16, 2, 2, 16))}});
  expect_placements(initialize(model, Config::parse(kTwo), dry()).plan(),
                    {{"patches.weight", "replicate"},
                     {"patches.bias", "replicate"},
                     {"overlapping.weight", "column: shard(0)"},
                     {"features.weight", "column: shard(0)"},
                     {"pointwise.weight", "column: shard(0)"},
                     {"depthwise.weight", "column: shard(0)"}});
}

TEST(StructuralPlan, AnExampleAsksForWholeHeads) {
  models::LlamaOptions options;  // heads of 8
  models::Llama model(options);
  auto how = dry();
  how.example_inputs = [&] { model->forward(torch::arange(8).view({2, 4})); };
  const auto plan = initialize(model, Config::parse(kTwo), how).plan();
  EXPECT_THAT(placement_of(plan, "layers.0.self_attn.k_proj.weight"), HasSubstr("unit 8"));
  EXPECT_THAT(entry_of(plan, "layers.0.self_attn.k_proj.weight").why, HasSubstr("example asks"));
  EXPECT_EQ(entry_of(plan, "layers.0.self_attn.k_proj.weight").local_shape,
            (std::vector<int64_t>{16, 48}));  // 2 of 3 heads
}

std::string plan_error(const std::string& plan, std::vector<Policy> policies = {}) {
  Tied model;
  auto how = dry();
  how.policies = std::move(policies);
  const std::string error = error_of([&] {
    Config config = Config::parse(R"({"plan": )" + plan + "}");
    config.set("model_parallelism.tensor_parallel_size=2");
    initialize(model, config, how);
  });
  expect_untouched(model);
  return error;
}

TEST(ExplicitPlan, WhatDoesNotFitIsNamed) {
  EXPECT_THAT(plan_error(R"({"mlp.upp": "row"})"),
              AllOf(HasSubstr("\"mlp.upp\" matches no layer"), HasSubstr("\"mlp.up\"")));
  EXPECT_THAT(plan_error(R"({"*.*.up": "row"})"), HasSubstr("one component"));
  EXPECT_THAT(plan_error(R"({"mlp.up": "columns"})"), HasSubstr("column, row, vocab, replicate"));
  EXPECT_THAT(plan_error(R"({"mlp.up": "column blocks=0"})"), HasSubstr("\"blocks=0\""));
  EXPECT_THAT(plan_error(R"({"mlp.up": "column heads=2"})"), HasSubstr("\"heads=2\""));
  EXPECT_THAT(plan_error(R"({"mlp.up": "column unit=2 unit=3"})"), HasSubstr("unit twice"));
  EXPECT_THAT(plan_error(R"({"wte": "vocab blocks=2"})"), HasSubstr("\"blocks=2\""));
  EXPECT_THAT(plan_error(R"({"mlp.up": "column blocks=5"})"),
              AllOf(HasSubstr("mlp.up has 12 features"), HasSubstr("blocks 5 x unit 1")));
  EXPECT_THAT(plan_error(R"({"wte": "row"})"), HasSubstr("wte is an embedding"));
  EXPECT_THAT(plan_error(R"({"wte": "vocab", "lm_head": "replicate"})"),
              AllOf(HasSubstr("lm_head shares its weight with wte"), HasSubstr("plan both alike")));
  EXPECT_THAT(plan_error("{}", {policy_for<models::GPT2Impl>({})}),
              HasSubstr("no module of this class"));
  EXPECT_THAT(plan_error("{}", {policy_for<models::MlpImpl>({{"gate", "row"}})}),
              AllOf(HasSubstr("\"gate\" matches no"), HasSubstr("inside mlp")));
}

TEST(ExplicitPlan, SpecificPatternsThenPoliciesThenStructure) {
  const auto plan_of = [](const std::string& patterns, std::vector<Policy> policies = {}) {
    auto how = dry();
    how.policies = std::move(policies);
    Config config = Config::parse(R"({"plan": )" + patterns + "}");
    config.set("model_parallelism.tensor_parallel_size=2");
    return initialize(Tied(), config, how).plan();
  };
  Plan plan = plan_of(R"({"mlp.up": "column blocks=3 unit=2", "mlp.*": "replicate"})");
  EXPECT_EQ(placement_of(plan, "mlp.up.weight"), "column: shard(0, blocks 3, unit 2)");
  EXPECT_EQ(placement_of(plan, "mlp.down.weight"), "replicate");
  plan = plan_of(R"({"*": "row", "wte": "vocab", "lm_head": "column"})");  // "*" alone: no table
  EXPECT_EQ(placement_of(plan, "lm_head.weight"), "column: shard(0)");
  plan = plan_of(R"({"mlp.down": "row"})",
                 {policy_for<models::MlpImpl>({{"up", "row"}, {"*", "column"}})});
  EXPECT_EQ(placement_of(plan, "mlp.up.weight"), "column: shard(0)");
  EXPECT_EQ(placement_of(plan, "mlp.down.weight"), "row: shard(1)");
  plan = plan_of(R"({"lm_head": "replicate"})");  // the one that is asked for decides for both
  EXPECT_EQ(placement_of(plan, "wte.weight"), "replicate");
  EXPECT_EQ(placement_of(plan, "mlp.down.weight"), "row: shard(1)");
}

TEST(Cutting, KeepsItsShareOfTheShape) {  // T4
  torch::nn::Sequential model(torch::nn::Linear(32, 128), torch::nn::Linear(128, 32),
                              torch::nn::Embedding(128, 32));
  const auto plan =
      initialize(model, Config::parse(R"({"model_parallelism": {"tensor_parallel_size": 2},
                                   "plan": {"0": "column", "1": "row", "2": "vocab"}})"),
                 dry())
          .plan();
  const auto shape = [&](const char* name) { return entry_of(plan, name).local_shape; };
  EXPECT_EQ(shape("0.weight"), (std::vector<int64_t>{64, 32}));
  EXPECT_EQ(shape("0.bias"), (std::vector<int64_t>{64}));
  EXPECT_EQ(shape("1.weight"), (std::vector<int64_t>{128 / 4, 64}));
  EXPECT_EQ(shape("1.bias"), (std::vector<int64_t>{32}));
  EXPECT_EQ(shape("2.weight"), (std::vector<int64_t>{64, 32}));
  EXPECT_EQ(entry_of(plan, "1.weight").global_shape, (std::vector<int64_t>{32, 128}));
}

TEST(Cutting, ReachesEveryContainer) {
  Containers model;
  initialize(model, Config::parse(kTwo), dry());
  int linears = 0, cut = 0;
  for (const auto& module : model->modules()) {
    if (!module->as<torch::nn::Linear>()) continue;  // a loop as users write it
    ++linears;
    cut += is_placed(module->as<torch::nn::Linear>()->weight);
  }
  EXPECT_EQ(linears, 4);
  EXPECT_EQ(cut, 4);
  EXPECT_EQ(model->named_children()["words"], model->named_children()["same_words"]);
  EXPECT_TRUE(is_placed(model->words->weight));
}

TEST(Cutting, ContainersComputeTheSame) {
  run_as_threads(2, [](World world) {
    auto model = make_seeded(5, [] { return Containers(); });
    auto reference = make_seeded(5, [] { return Containers(); });
    model->eval();
    reference->eval();
    initialize(model, Config::parse(kTwo), in(world));
    EXPECT_FALSE(model->named_children()["words"]->is_training());
    const auto tokens = torch::arange(10);
    const auto y = model->forward(tokens), expected = reference->forward(tokens);
    EXPECT_TRUE(torch::allclose(full_tensor(y), expected, 1e-5, 1e-6));
    y.pow(2).sum().backward();
    expected.pow(2).sum().backward();
    EXPECT_TRUE(torch::allclose(full_tensor(model->words->weight.grad()),
                                reference->words->weight.grad(), 1e-5, 1e-6));
  });
}

struct State {
  std::vector<torch::Tensor> parameters, gradients, buffers;
  torch::Tensor random;
};

State state_of(const Containers& model) {
  State state{{}, {}, {}, torch::globalContext().defaultGenerator(torch::kCPU).get_state().clone()};
  for (const auto& p : model->parameters()) {
    state.parameters.push_back(full_tensor(p).detach().clone());
    state.gradients.push_back(p.grad());
  }
  for (const auto& buffer :
       {model->norm->running_mean, model->norm->running_var, model->cache, model->cache_head}) {
    state.buffers.push_back(buffer.clone());
  }
  return state;
}

void expect_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << i;
    if (!a[i].defined()) continue;
    EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
  }
}

TEST(Example, LeavesNoTrace) {
  Containers model;
  const State before = state_of(model);
  auto how = dry();
  int runs = 0;
  how.random_mode = RandomMode::per_rank;
  how.example_inputs = [&] {
    EXPECT_TRUE(is_placed(model->words->weight));
    EXPECT_FALSE(model->words->weight.has_storage());
    EXPECT_TRUE(model->words->weight.is_cpu());  // it says
    model->forward(torch::arange(10));
    torch::rand({3});
    ++runs;
  };
  const auto parallel = initialize(model, Config::parse(kTwo), how);
  EXPECT_GT(runs, 0);
  EXPECT_EQ(parallel.mpu().tensor_group()->ledger().total(), Traffic());
  const State after = state_of(model);
  expect_equal(after.buffers, before.buffers);
  expect_equal(after.gradients, before.gradients);
  EXPECT_TRUE(torch::equal(after.random, before.random));
  EXPECT_TRUE(model->cache_head.is_alias_of(model->cache));
  EXPECT_TRUE(model->is_training());
  auto sharded = parallel.mpu().random().sharded();
  MPU fresh(World::fake(0, 2), MpuOptions().tensor_parallel_size(2));
  EXPECT_TRUE(torch::equal(sharded.get_state(), fresh.random().sharded().get_state()));
}

TEST(Example, ThatThrowsGivesTheModelBackWhole) {
  Containers model;
  model->forward(torch::arange(10)).sum().backward();
  const State before = state_of(model);
  auto how = dry();
  how.example_inputs = [&] {
    model->forward(torch::arange(10));
    throw std::runtime_error("no such batch");
  };
  EXPECT_EQ(error_of([&] { initialize(model, Config::parse(kTwo), how); }),
            "initialize: example_inputs threw: no such batch");
  expect_untouched(model);
  const State after = state_of(model);
  expect_equal(after.parameters, before.parameters);
  expect_equal(after.gradients, before.gradients);
  expect_equal(after.buffers, before.buffers);
  EXPECT_EQ(model->words->options.padding_idx(), 7);
  how.example_inputs = [&] { model->forward(torch::ones({4, 4})); };  // no tokens
  EXPECT_THAT(error_of([&] { initialize(model, Config::parse(kTwo), how); }),
              HasSubstr("example_inputs threw"));
  expect_untouched(model);
  initialize(model, Config::parse(kTwo), dry()).check();
}

TEST(Plan, TellsWhatAStepMoved) {
  run_as_threads(2, [](World world) {
    auto model = make_seeded(3, [] { return Tied(); });
    auto parallel = initialize(model, Config::parse(kTwo), in(world));
    EXPECT_THAT(parallel.plan().to_string(), HasSubstr("no collectives since initialize"));
    const auto tokens = torch::arange(4);
    parallel.count(
        [&] { torch::nn::functional::cross_entropy(model->forward(tokens), tokens).backward(); });
    model->forward(tokens);  // not counted
    const Plan plan = parallel.plan();
    const auto json = plan.to_json();
    EXPECT_EQ(json["counted"], "in the counted step");
    EXPECT_TRUE(json["gathers"].empty());
    const auto& tied = json["parameters"].back();
    EXPECT_EQ(tied["parameter"], "lm_head.weight");
    EXPECT_EQ(tied["tied_to"], "wte.weight");
    EXPECT_EQ(tied["module_before"], "torch::nn::Linear");
    EXPECT_EQ(tied["module_after"], "oslo::nn::ColumnParallelLinear");
    EXPECT_EQ(tied["placement"], "column: shard(0)");
    EXPECT_EQ(tied["global_shape"], nlohmann::json({10, 8}));
    EXPECT_EQ(tied["local_shape"], nlohmann::json({5, 8}));
    EXPECT_EQ(tied["local_bytes"], 5 * 8 * 4);
    EXPECT_EQ(tied["stage"], 0);
    // Tied once, both projections and one bias halved, the other whole.
    EXPECT_EQ(plan.local_bytes(), 4 * (5 * 8 + 6 * 8 + 6 + 8 * 6 + 8));
    int64_t calls = 0, elements = 0;
    for (const auto& line : json["collectives"]) {
      EXPECT_EQ(line["group"], "tensor");
      EXPECT_EQ(line["collective"], "all_reduce");
      EXPECT_EQ(line["bytes"], line["elements"].get<int64_t>() * 4);
      calls += line["calls"].get<int64_t>();
      elements += line["elements"].get<int64_t>();
    }
    // The table's rows, the second projection, the head's and the first projection's input
    // gradients: [4, 8] each. The loss: a maximum a row, then sum and picked logit.
    EXPECT_EQ(calls, 6);
    EXPECT_EQ(elements, 4 * 4 * 8 + 4 + 2 * 4);
    EXPECT_THAT(plan.to_string(),
                AllOf(HasSubstr("Linear -> ColumnParallelLinear"), HasSubstr("tied to wte.weight"),
                      HasSubstr("[10, 8]  [5, 8]  160"), HasSubstr("no gathers"),
                      HasSubstr("collectives in the counted step")));
  });
}

}  // namespace
}  // namespace oslo
