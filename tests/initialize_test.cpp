// initialize: what it refuses, on which ranks and with which words, and what it leaves alone.
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <future>

#include "tests/models/gpt2.h"
#include "tests/models/small.h"
#include "tests/support/error_of.h"
#include "tests/support/errors_of.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using models::Mlp;
using models::Tied;
using parity::make_seeded;
using parity::tensor_parallel;
using test::error_of;
using test::errors_of;
using test::expect_untouched;
using test::in;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

/// One layer for all depths, as in ALBERT.
struct SharedDepthImpl : torch::nn::Module {
  SharedDepthImpl() : layer(register_module("layer", Mlp())) {}
  torch::Tensor forward(torch::Tensor x) {
    for (int depth = 0; depth < 3; ++depth) x = x + layer(x);
    return x;
  }
  Mlp layer{nullptr};
};
TORCH_MODULE(SharedDepth);

Mlp seeded_mlp(uint64_t seed = 1) {
  return make_seeded(seed, [] { return Mlp(); });
}

const std::string kTwo = tensor_parallel(2);

TEST(Initialize, TwiceIsAnError) {  // T18
  for (const int size : {1, 2}) {
    const auto errors = errors_of(size, [&](World world) {
      Mlp model = seeded_mlp();
      const Config config = Config::parse(tensor_parallel(size));
      const auto first = initialize(model, config, in(world));
      initialize(model, config, in(world));
    });
    EXPECT_THAT(errors, Each(HasSubstr("this model is parallel already")));
  }
}

TEST(Initialize, DisabledLeavesTheModelAsItIs) {  // T18
  run_as_threads(2, [](World world) {
    Mlp model = seeded_mlp(1 + world.rank());  // not even compared
    std::vector<const void*> before, after;
    for (const auto& p : model->parameters()) before.push_back(p.unsafeGetTensorImpl());
    const auto parallel =
        initialize(model, Config::parse(R"({"model_parallelism": {"enable": false}})"), in(world));
    for (const auto& p : model->parameters()) after.push_back(p.unsafeGetTensorImpl());
    EXPECT_EQ(before, after);
    expect_untouched(model);
    EXPECT_EQ(parallel.mpu().get_data_parallel_world_size(), 2);
    EXPECT_TRUE(parallel.plan().entries.empty());
    Mlp same = seeded_mlp();
    initialize(same, Config::parse(R"({"model_parallelism": {"enable": false}})"), in(world));
    initialize(same, Config::parse(kTwo), in(world)).check();
    EXPECT_TRUE(is_placed(same->up->weight));
  });
}

TEST(Initialize, OnOneRankNothingIsMarked) {
  Mlp model = seeded_mlp();
  const auto parallel = initialize(model, Config(), in(World::alone()));
  for (const auto& p : model->parameters()) EXPECT_FALSE(is_placed(p));
  EXPECT_FALSE(is_placed(model->forward(torch::ones({2, 8}))));
  EXPECT_THAT(parallel.plan().to_string(), HasSubstr("no collectives since initialize"));
}

TEST(Initialize, AModuleUsedSeveralTimesInForward) {  // T18
  parity::Setup setup;
  setup.config = kTwo;
  parity::expect_parity(
      setup, [] { return SharedDepth(); },
      [](int) {
        return parity::Batch{torch::randn({3, 8}, torch::kFloat64),
                             torch::randn({3, 8}, torch::kFloat64)};
      },
      [](const torch::Tensor& y, const torch::Tensor& target) {
        return torch::mse_loss(y, target);
      });
}

TEST(Initialize, SizesThatDoNotFitAreRefusedOnEveryRank) {
  const auto refused = [](int size, const std::string& config) {
    return errors_of(size, [&](World world) {
      Mlp model = seeded_mlp();
      try {
        initialize(model, Config::parse(config), in(world));
      } catch (const Error&) {
        expect_untouched(model);
        throw;
      }
    });
  };
  EXPECT_THAT(refused(3, kTwo),
              Each(AllOf(HasSubstr("world size 3"), HasSubstr("nearest choice"))));
  EXPECT_THAT(refused(2, R"({"train": {"dist": {"pipeline_parallel_size": 2}}})"),
              Each(HasSubstr("'train.dist.pipeline_parallel_size' = 2")));
  EXPECT_THAT(refused(6, R"({"parallel": {"tensor": {"size": 6, "mode": "2d"}}})"),
              Each(HasSubstr("2d")));
}

TEST(Initialize, RanksThatDifferAreNamedOnEveryRank) {
  const auto differ = [](const std::function<void(World)>& body) { return errors_of(2, body); };
  const auto config_of = [](World world, const char* first, const char* second) {
    return Config::parse(world.rank() == 0 ? first : second);
  };
  EXPECT_THAT(differ([&](World world) {
                const char* off = R"({"model_parallelism": {"enable": false}})";
                initialize(seeded_mlp(), config_of(world, off, kTwo.c_str()), in(world));
              }),
              Each(AllOf(HasSubstr("the config differs between ranks: rank 0 has"),
                         HasSubstr("rank 1 has"), HasSubstr("same config"))));
  EXPECT_THAT(differ([&](World world) {
                Mlp model = make_seeded(1, [&] { return Mlp(12 + 4 * world.rank()); });
                initialize(model, Config::parse(kTwo), in(world));
              }),
              Each(AllOf(HasSubstr("rank 0 has up.weight [12, 8]"),
                         HasSubstr("rank 1 has up.weight [16, 8]"))));
  EXPECT_THAT(
      differ([&](World world) {
        initialize(seeded_mlp(world.rank()), Config::parse(kTwo), in(world));
      }),
      Each(AllOf(HasSubstr("rank 0 has up.weight (hash"), HasSubstr("torch::manual_seed"))));
  EXPECT_THAT(differ([&](World world) {
                auto how = in(world);
                if (world.rank() == 0) how.example_inputs = [] {};
                initialize(seeded_mlp(), Config::parse(kTwo), how);
              }),
              Each(AllOf(HasSubstr("rank 0 has example_inputs"),
                         HasSubstr("rank 1 has no example_inputs"))));
  EXPECT_THAT(differ([&](World world) {  // data replicas: DDP broadcasts
                initialize(seeded_mlp(world.rank()), Config(), in(world));
              }),
              Each(std::string()));
}

TEST(Initialize, ARankThatThrowsBeforeEndsTheOthersSoon) {
  std::string other;
  EXPECT_THAT(error_of([&] {
                run_as_threads(2, [&](World world) {
                  if (world.rank() == 1) throw std::runtime_error("cannot open weights.bin");
                  other =
                      error_of([&] { initialize(seeded_mlp(), Config::parse(kTwo), in(world)); });
                });
              }),
              HasSubstr("rank 1: cannot open weights.bin"));
  EXPECT_THAT(other, AllOf(HasSubstr("rank 0 waited for rank 1"),
                           HasSubstr("failed: cannot open weights.bin")));
}

TEST(Initialize, RefusesWhatCannotBeChangedInPlace) {
  const auto errors = errors_of(2, [](World world) {
    Mlp model = seeded_mlp();
    torch::Tensor kept = model->forward(torch::ones({1, 8}));
    if (world.rank() == 1) kept = torch::Tensor();  // alive on one rank, refused on both
    try {
      initialize(model, Config::parse(kTwo), in(world));
    } catch (const Error&) {
      expect_untouched(model);
      kept = torch::Tensor();
      initialize(model, Config::parse(kTwo), in(world)).check();
      throw;
    }
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("parameter up.weight"), HasSubstr("still alive"))));
  Tied model;
  const auto alias = model->wte->weight.detach().requires_grad_();
  model->lm_head->weight = alias;
  EXPECT_THAT(
      error_of([&] { initialize(model, Config::parse(kTwo), in(World::fake(0, 2))); }),
      HasSubstr("parameters wte.weight and lm_head.weight are two tensors over one memory"));
  // Also where one of the two stays whole, or lies otherwise in the same memory.
  model->lm_head->weight = model->wte->weight.detach().slice(0, 1, 3);
  auto config = Config::parse(kTwo);
  config.set("plan.wte=vocab");
  config.set("plan.lm_head=replicate");
  EXPECT_THAT(
      error_of([&] { initialize(model, config, in(World::fake(0, 2))); }),
      HasSubstr("parameters wte.weight and lm_head.weight are two tensors over one memory"));
}

TEST(Initialize, GradientsAreCutWithTheirParameters) {
  run_as_threads(2, [](World world) {
    Mlp model = seeded_mlp();
    model->forward(torch::ones({1, 8})).sum().backward();
    const auto whole = model->up->weight.grad().clone();
    initialize(model, Config::parse(kTwo), in(world));
    EXPECT_EQ(model->up->weight.grad().sizes(), torch::IntArrayRef({6, 8}));
    EXPECT_TRUE(torch::equal(full_tensor(model->up->weight.grad()), whole));
    model->forward(torch::ones({1, 8})).sum().backward();
    EXPECT_TRUE(torch::allclose(full_tensor(model->up->weight.grad()), 2 * whole));
  });
}

TEST(ParallelModel, CheckNamesLostAndReplacedParameters) {
  const auto config = Config::parse(kTwo);
  Mlp lost;
  const auto parallel = initialize(lost, config, in(World::fake(0, 2)));
  parallel.check();
  EXPECT_THAT(error_of([&] {
                lost->up->weight.set_data(torch::zeros({6, 8}));
              }),
              HasSubstr("up.weight"));
  parallel.check();
  lost->up->weight.unsafeGetTensorImpl()->shallow_copy_from(torch::zeros({6, 8}).getIntrusivePtr());
  EXPECT_THAT(error_of([&] { parallel.check(); }),
              AllOf(HasSubstr("up.weight"), HasSubstr("lost")));
  Mlp replaced;
  const auto other = initialize(replaced, config, in(World::fake(0, 2)));
  replaced->replace_module("down", torch::nn::Linear(12, 8).ptr());
  EXPECT_THAT(error_of([&] { other.check(); }),
              AllOf(HasSubstr("down.weight"), HasSubstr("replaced")));
}

TEST(ParallelModel, MayDieBeforeTheModel) {
  run_as_threads(2, [](World world) {
    Mlp model = seeded_mlp(), reference = seeded_mlp();
    initialize(model, Config::parse(kTwo), in(world));  // the handle is gone
    const auto x = torch::ones({2, 8});
    auto y = model->forward(x), expected = reference->forward(x);
    EXPECT_TRUE(torch::allclose(full_tensor(y), expected));
    y.sum().backward();
    expected.sum().backward();
    EXPECT_TRUE(
        torch::allclose(full_tensor(model->up->weight.grad()), reference->up->weight.grad()));
  });
}

TEST(ParallelModel, HandsTheModelOutByItsClass) {
  Mlp model;
  const auto parallel = initialize(model, Config(), in(World::alone()));
  EXPECT_EQ(parallel.module_as<models::MlpImpl>(), model.ptr());
  EXPECT_EQ(parallel.module(), model.ptr());
  EXPECT_THAT(error_of([&] { parallel.module_as<models::TiedImpl>(); }),
              AllOf(HasSubstr("Mlp"), HasSubstr("TiedImpl")));
}

/// Calls by (collective, rule) in one training step.
std::map<std::pair<std::string, std::string>, int64_t> calls_a_step(const World& world) {
  models::GPT2Options options;
  options.heads = 64;
  options.hidden = 128;
  auto model = make_seeded(3, [&] { return models::GPT2(options); });
  auto parallel = initialize(model, Config::parse(tensor_parallel(world.size())), in(world));
  const auto tokens = torch::arange(22).view({2, 11}) % options.vocabulary;
  parallel.count([&] {
    torch::nn::functional::cross_entropy(model->forward(tokens).view({-1, options.vocabulary}),
                                         tokens.view(-1))
        .backward();
  });
  std::map<std::pair<std::string, std::string>, int64_t> calls;
  for (const auto& line : parallel.plan().traffic) {
    calls[{line.entry.operation, line.entry.rule}] += line.entry.traffic.calls;
  }
  return calls;
}

TEST(DryRun, SixtyFourRanksCallWhatTwoCall) {
  const auto dry = calls_a_step(World::fake(0, 64));
  EXPECT_FALSE(dry.empty());
  run_as_threads(2, [&](World world) { EXPECT_EQ(calls_a_step(world), dry); });
}

/// A counter that checkpoints leave out, as of a module that Python exported.
struct CountingImpl : torch::nn::Module, ModuleTraits {
  CountingImpl()
      : layer(register_module("layer", Mlp())),
        calls(register_buffer("calls", torch::zeros({}, torch::kLong))) {
    register_buffer("expanded", torch::arange(3).expand({2, 3}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layer(x) * calls.add_(1); }
  const std::string& written_class() const override { return class_name; }
  bool saves_buffer(const std::string&) const override { return false; }
  std::string class_name = "Counting";
  Mlp layer{nullptr};
  torch::Tensor calls;
};
TORCH_MODULE(Counting);

TEST(Initialize, BuffersThatAreNotSavedAreAsBefore) {
  for (const char* parallel : {"tensor", "pipeline"}) {
    run_as_threads(2, [&](World world) {
      Counting model = make_seeded(1, [] { return Counting(); });
      InitializeOptions how = in(world);
      how.example_inputs = [&] { model->forward(torch::ones({3, 8})); };
      const std::string config = c10::str(R"({"model_parallelism": {"enable": true, ")", parallel,
                                          R"(_parallel_size": 2}})");
      const auto initialized = initialize(model, Config::parse(config), how);
      EXPECT_EQ(model->calls.item<int64_t>(), 0) << parallel;
    });
  }
}

// Its last run on rank 1 waits for rank 0 to leave, in vain: else what rank 0 draws next, from a
// generator that threads share, would be put back under its hands.
TEST(Initialize, NoRankLeavesBeforeTheLastRunOfTheExample) {
  for (const char* layout :
       {R"("tensor": {"size": 2, "mode": "1d"})", R"("tensor": {"size": 2, "mode": "sequence"})",
        R"("pipeline": {"size": 2, "num_model_chunks": 2})"}) {
    const auto config = c10::str(R"({"parallel": {)", layout, "}}");
    int last = 0;
    const auto pass = [&](const std::function<void(int run)>& meanwhile,
                          const std::function<void()>& leave) {
      run_as_threads(2, [&](World world) {
        auto model = make_seeded(1, [] { return models::GPT2(models::GPT2Options{.layers = 4}); });
        InitializeOptions how = in(world);
        int runs = 0;
        how.example_inputs = [&] {
          model->forward(torch::zeros({3, 6}, torch::kLong));
          if (world.rank() == 1) meanwhile(++runs);
        };
        const auto parallel = initialize(model, Config::parse(config), how);
        if (world.rank() == 0) leave();
      });
    };
    pass([&](int run) { last = run; }, [] {});
    ASSERT_GT(last, 0) << layout;
    std::promise<void> left;
    const auto outside = left.get_future();
    pass(
        [&](int run) {
          if (run < last) return;
          EXPECT_EQ(outside.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout)
              << layout;
        },
        [&] { left.set_value(); });
  }
}

}  // namespace
}  // namespace oslo
