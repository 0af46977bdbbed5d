// Untouched models under initialize: numbers against one device, what each rank holds, and what a
// step moves (acceptance cases T5, T7, T8, T10 to T14).
#include <gmock/gmock.h>

#include "parallelizers/placement/carrier/mark.h"
#include "tests/models/gpt2.h"
#include "tests/models/llama.h"
#include "tests/models/small.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using models::Mlp;
using parity::expect_close;
using parity::make_seeded;
using parity::tensor_parallel;
using test::in;
using torch::Tensor;

Tensor drawn(at::IntArrayRef sizes) {
  return make_seeded(11, [&] { return torch::randn(sizes, torch::kFloat64); });
}

ParallelModel parallelize(std::shared_ptr<torch::nn::Module> model, const World& world) {
  return initialize(std::move(model), Config::parse(tensor_parallel(world.size())), in(world));
}

/// What `action` moved in the tensor group.
Traffic moved(const ParallelModel& parallel, const std::function<void()>& action,
              const std::string& operation = "") {
  Ledger& ledger = parallel.mpu().tensor_group()->ledger();
  const Traffic before = ledger.total(operation);
  action();
  return ledger.total(operation) - before;
}

TEST(TensorParallel, AnMlpReducesOnceEachWay) {  // T5
  for (const int ranks : {2, 4}) {
    run_as_threads(ranks, [&](World world) {
      const int64_t batch = 3, time = 4, hidden = 32, size = batch * time * hidden;
      torch::nn::Sequential model = make_seeded(1, [&] {
        return torch::nn::Sequential(torch::nn::Linear(hidden, 128), torch::nn::GELU(),
                                     torch::nn::Linear(128, hidden));
      });
      Config config = Config::parse(R"({"plan": {"2": "row"}})");
      config.set("model_parallelism.tensor_parallel_size=" + std::to_string(ranks));
      const auto parallel = initialize(model, config, in(world));
      const Tensor x = torch::ones({batch, time, hidden}).set_requires_grad(true);
      const int64_t received = 2 * (ranks - 1) * size / ranks;
      Tensor y;
      EXPECT_EQ(moved(parallel, [&] { y = model->forward(x); }),
                (Traffic{1, received, 4 * received}));
      EXPECT_EQ(moved(parallel, [&] { y.sum().backward(); }), (Traffic{1, received, 4 * received}));
      EXPECT_EQ(moved(
                    parallel, [&] { y = model->forward(x); }, "all_reduce")
                    .calls,
                1);
    });
  }
}

enum class Head { product, member, registered };

/// A layer that registers a parameter of another one.
struct BorrowedImpl : torch::nn::Module {
  explicit BorrowedImpl(const Tensor& borrowed) : weight(register_parameter("weight", borrowed)) {}
  Tensor forward(const Tensor& x) { return torch::linear(x, weight); }
  Tensor weight;
};
TORCH_MODULE(Borrowed);

/// A vocabulary of any size, with a head that is the embedding, tied in one of three ways.
struct LanguageImpl : torch::nn::Module {
  LanguageImpl(int64_t vocabulary, Head head, int64_t hidden = 4) : head(head) {
    wte = register_module("wte", torch::nn::Embedding(vocabulary, hidden));
    if (head == Head::member) {
      lm_head = register_module(
          "lm_head", torch::nn::Linear(torch::nn::LinearOptions(hidden, vocabulary).bias(false)));
      lm_head->weight = wte->weight;
    } else if (head == Head::registered) {
      borrowed = register_module("borrowed", Borrowed(wte->weight));
    }
  }

  Tensor forward(const Tensor& tokens) {
    const Tensor x = torch::tanh(wte(tokens));
    if (head == Head::member) return lm_head(x);
    if (head == Head::registered) return borrowed(x);
    return torch::matmul(x, wte->weight.t());
  }

  Head head;
  torch::nn::Embedding wte{nullptr};
  torch::nn::Linear lm_head{nullptr};
  Borrowed borrowed{nullptr};
};
TORCH_MODULE(Language);

Tensor language_loss(const Tensor& logits, const Tensor& target) {
  return torch::nn::functional::cross_entropy(logits, target);
}

TEST(TensorParallel, VocabulariesThatDoNotDivide) {  // T7
  struct Case {
    int64_t vocabulary;
    int ranks;
    std::vector<int64_t> rows;
  };
  for (const Case& each : {Case{50257, 4, {12565, 12564, 12564, 12564}},
                           Case{65535, 2, {32768, 32767}}, Case{10, 4, {3, 3, 2, 2}}}) {
    parity::Setup setup;
    setup.world = each.ranks;
    setup.config = tensor_parallel(each.ranks);
    setup.steps = 2;
    const auto batch = [&](int) {
      auto tokens = torch::randint(each.vocabulary, {7});
      tokens[0] = each.vocabulary - 1;
      tokens[1] = each.rows[0];  // the first row of the second rank
      return parity::Batch{tokens, tokens.flip(0)};
    };
    parity::expect_parity(
        setup, [&] { return Language(each.vocabulary, Head::product); }, batch, language_loss,
        [&](const parity::Outcome& outcome) {
          const auto weight = outcome.parallel.module()->parameters()[0];
          EXPECT_EQ(weight.size(0), each.rows[outcome.rank]);
          EXPECT_TRUE(outcome.parallel.plan().gathers.empty());
        });
  }
}

TEST(TensorParallel, ATiedHeadIsOneTensor) {  // T8
  for (const Head head : {Head::product, Head::member, Head::registered}) {
    run_as_threads(2, [&](World world) {
      auto model = make_seeded(2, [&] { return Language(11, head); });
      auto reference = make_seeded(2, [&] { return Language(11, head); });
      const auto before = model->wte->weight;
      const auto parallel = parallelize(model.ptr(), world);
      EXPECT_TRUE(model->wte->weight.is_same(before));
      const auto registered = model->named_parameters();
      for (const auto& item : reference->named_parameters()) {  // as the author has it
        EXPECT_EQ(registered[item.key()].is_same(before),
                  item.value().is_same(reference->wte->weight))
            << item.key();
      }
      const auto tokens = torch::arange(11);
      language_loss(model->forward(tokens), tokens).backward();
      language_loss(reference->forward(tokens), tokens).backward();
      EXPECT_TRUE(
          torch::allclose(full_tensor(before.grad()), reference->wte->weight.grad(), 1e-5, 1e-6));
      for (const auto& entry : parallel.plan().entries) {
        EXPECT_EQ(entry.tied_to, entry.module == "wte" ? "" : "wte.weight");
        EXPECT_EQ(entry.local_shape[0], world.rank() == 0 ? 6 : 5);
      }
    });
  }
}

TEST(TensorParallel, AFusedProjectionKeepsItsThreeParts) {  // T10
  run_as_threads(2, [](World world) {
    const models::GPT2Options options;
    auto model = make_seeded(3, [&] { return models::GPT2(options); });
    const auto& layer = (*model->h)[0]->as<models::GPT2Block>()->attn->c_attn;
    const Tensor whole = layer->weight.detach().clone(), bias = layer->bias.detach().clone();
    parallelize(model.ptr(), world);
    const auto own = [&](const Tensor& t) {
      std::vector<Tensor> parts;
      for (const auto& part : t.chunk(3, 0)) parts.push_back(part.chunk(2, 0)[world.rank()]);
      return torch::cat(parts);
    };
    EXPECT_TRUE(torch::equal(local_tensor(layer->weight), own(whole)));
    EXPECT_TRUE(torch::equal(local_tensor(layer->bias), own(bias)));
    EXPECT_TRUE(torch::equal(full_tensor(layer->weight), whole));
    EXPECT_TRUE(torch::equal(full_tensor(layer->bias), bias));
  });
}

TEST(TensorParallel, GroupedQueriesAreCutByTheirOwnUnits) {  // T10: 8 query and 2 key-value heads
  const int64_t head = 4;
  for (const int ranks : {2, 3, 4}) {
    run_as_threads(ranks, [&](World world) {
      const MPU mpu(world, MpuOptions().tensor_parallel_size(ranks));
      const Tensor whole = torch::arange(12 * head * 5).view({12 * head, 5}).to(torch::kFloat64);
      const Tensor parameter = whole.clone();
      const auto placement =
          Placement::shard_runs(0, {8 * head, 2 * head, 2 * head}, {head, head, head});
      mark_parameter(
          parameter,
          std::make_shared<Layout>(make_layout(mpu.tensor_mesh(), {placement}, whole.sizes())),
          "qkv");
      std::vector<Tensor> parts;
      for (const auto& run : whole.split_with_sizes({8 * head, 2 * head, 2 * head})) {
        const auto heads = run.view({-1, head, 5}).tensor_split(ranks)[world.rank()];
        parts.push_back(heads.reshape({-1, 5}));
      }
      EXPECT_TRUE(torch::equal(local_tensor(parameter), torch::cat(parts)));
      EXPECT_TRUE(torch::equal(full_tensor(parameter), whole));
    });
  }
}

TEST(TensorParallel, GroupsOfHeadsThatDoNotDivide) {  // T11: 12 query and 6 key heads over 4
  models::LlamaOptions options;
  options.heads = 12;
  options.kv_heads = 6;
  parity::Setup setup;
  setup.world = 4;
  setup.config = tensor_parallel(4);
  setup.example = true;
  parity::expect_parity(
      setup, [&] { return models::Llama(options); },
      [&](int) {
        return parity::Batch{torch::randint(options.vocabulary, {2, 5}),
                             torch::randint(options.vocabulary, {2, 5})};
      },
      [](const Tensor& logits, const Tensor& target) {
        return language_loss(logits.view({-1, logits.size(-1)}), target.view(-1));
      },
      [&](const parity::Outcome& outcome) {
        const auto parameters = outcome.parallel.module()->named_parameters();
        const int64_t groups = outcome.rank < 2 ? 2 : 1, head = options.hidden / options.heads;
        EXPECT_EQ(parameters["layers.0.self_attn.k_proj.weight"].size(0), groups * head);
        EXPECT_EQ(parameters["layers.0.self_attn.q_proj.weight"].size(0), 2 * groups * head);
        EXPECT_EQ(parameters["layers.0.self_attn.o_proj.weight"].size(1), 2 * groups * head);
        EXPECT_TRUE(outcome.parallel.plan().gathers.empty());
      });
}

TEST(TensorParallel, MoreRanksThanRows) {  // T11
  parity::Setup setup;
  setup.world = 4;
  setup.config = tensor_parallel(4);
  parity::expect_parity(
      setup, [] { return Mlp(3); },
      [](int) {
        return parity::Batch{torch::randn({5, 8}, torch::kFloat64),
                             torch::randn({5, 8}, torch::kFloat64)};
      },
      [](const Tensor& y, const Tensor& target) { return torch::mse_loss(y, target); },
      [](const parity::Outcome& outcome) {
        EXPECT_EQ(outcome.parallel.module()->named_parameters()["up.weight"].size(0),
                  outcome.rank < 3 ? 1 : 0);
      });
}

TEST(TensorParallel, FrozenWeightsStayFrozenAndSaveCollectives) {  // T12
  run_as_threads(2, [](World world) {
    const auto make = [] { return torch::nn::Sequential(Mlp(), Mlp()); };
    const auto step = [&](bool frozen) {
      torch::nn::Sequential model = make_seeded(4, make);
      model->to(torch::kFloat64);
      for (auto& p : model[0]->parameters()) p.set_requires_grad(!frozen);
      const auto parallel = parallelize(model.ptr(), world);
      const Tensor y = model->forward(drawn({5, 8}));
      const auto backward = moved(parallel, [&] { y.pow(2).sum().backward(); });
      for (const auto& p : model[0]->parameters()) {
        EXPECT_EQ(p.requires_grad(), !frozen);
        EXPECT_EQ(p.grad().defined(), !frozen);
      }
      EXPECT_TRUE(model[1]->parameters()[0].grad().defined());
      return backward.calls;
    };
    EXPECT_EQ(step(false), 1);  // the second block's input gradient; the first's input needs none
    EXPECT_EQ(step(true), 0);
  });
}

TEST(TensorParallel, ATransformerStepNeedsTwelveAllReduces) {  // T13
  for (const bool fused : {true, false}) {
    run_as_threads(2, [&](World world) {
      models::GPT2Options options;
      options.fused_attention = fused;
      auto model = make_seeded(5, [&] { return models::GPT2(options); });
      auto parallel = parallelize(model.ptr(), world);
      const auto tokens = torch::arange(22).view({2, 11});
      for (int step = 0; step < 2; ++step) {
        parallel.count([&] {
          language_loss(model->forward(tokens).view({-1, options.vocabulary}), tokens.view(-1))
              .backward();
        });
        const Plan plan = parallel.plan();
        int64_t calls = 0;
        for (const auto& line : plan.traffic) {
          EXPECT_EQ(line.entry.operation, "all_reduce");
          calls += line.entry.traffic.calls;
        }
        // Two each way a layer, the embedding, the head's input gradient, two of the loss.
        EXPECT_EQ(calls, 4 * options.layers + 4) << plan.to_string();
        EXPECT_TRUE(plan.gathers.empty()) << plan.to_string();
      }
    });
  }
}

TEST(TensorParallel, NamesTypesAndFlagsArePreserved) {  // T14
  run_as_threads(2, [](World world) {
    for (const auto dtype : {torch::kFloat64, torch::kBFloat16}) {
      auto model = make_seeded(6, [] { return models::GPT2(models::GPT2Options()); });
      model->to(dtype);
      model->wte->weight.set_requires_grad(false);
      (*model->h)[1]->as<models::GPT2Block>()->c_fc->bias.set_requires_grad(false);
      const auto before = model->named_parameters();
      std::vector<bool> required;
      for (const auto& item : before) required.push_back(item.value().requires_grad());
      parallelize(model.ptr(), world);
      const auto after = model->named_parameters();
      EXPECT_EQ(after.keys(), before.keys());
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(after[i].value().is_same(before[i].value())) << after[i].key();
        EXPECT_EQ(after[i].value().requires_grad(), required[i]) << after[i].key();
        EXPECT_EQ(after[i].value().scalar_type(), dtype) << after[i].key();
        EXPECT_TRUE(after[i].value().is_leaf()) << after[i].key();
      }
    }
  });
}

}  // namespace
}  // namespace oslo
