// Strict mode: what would gather throws, by name, before it moves.
#include <gmock/gmock.h>

#include "oslo_cpp/explain/strict_gathers.h"
#include "parallelizers/placement/operators/dimension_map.h"
#include "tests/explain_test/explained.h"
#include "tests/models/gpt2.h"
#include "tests/models/small.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"

namespace explain_test {
namespace {

using oslo::run_as_threads;
using oslo::World;
using oslo::test::error_of;
using oslo::test::expect_contains;
using oslo::test::in;
using parity::make_seeded;

/// up, something, down.
struct BetweenImpl : torch::nn::Module {
  explicit BetweenImpl(std::function<Tensor(const Tensor&)> between) : between(std::move(between)) {
    up = register_module("up", torch::nn::Linear(6, 10));
    down = register_module("down", torch::nn::Linear(10, 6));
  }
  Tensor forward(const Tensor& x) { return down(between(up(x))); }

  std::function<Tensor(const Tensor&)> between;
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Between);

Tensor sorted(const Tensor& x) {
  return std::get<0>(x.sort(-1));
}

const char* const kStrict = R"({"strict": true, "plan": {"up": "column", "down": "row"},
    "model_parallelism": {"enable": true, "tensor_parallel_size": 2}})";

/// On ranks that are threads; `body` gets a model of `between`, and x.
void on_strict_ranks(const std::function<Tensor(const Tensor&)>& between,
                     const std::function<void(Between&, oslo::ParallelModel&, const Tensor&)>& body,
                     const std::string& config = kStrict, int ranks = 2) {
  const Tensor x = make_seeded(4, [] { return torch::randn({3, 6}); });
  run_as_threads(ranks, [&](World world) {
    at::set_num_threads(1);
    Between model = make_seeded(3, [&] { return Between(between); });
    auto parallel = oslo::initialize(model, oslo::Config::parse(config), in(world));
    clear(parallel.mpu());
    body(model, parallel, x);
  });
}

/// K24 of acceptance-2: the operator, how its operand lies, the fix; and nothing moved.
TEST(Strict, AnOperatorThatWouldGatherThrows) {
  on_strict_ranks(sorted, [](Between& model, oslo::ParallelModel& parallel, const Tensor& x) {
    for (int time = 0; time < 2; ++time) {
      expect_contains(error_of([&] { model->forward(x); }),
                      {"strict: aten::sort", "module up", "[3, 10]", "dim 1 over tensor: 5+5",
                       "as up.weight is", "\"plan\": {\"up\": \"replicate\"}", "oslo::full_tensor",
                       "\"strict\": false"});
    }
    EXPECT_EQ(error_of([&] { model->forward(x); }),
              "strict: aten::sort, at or behind module up, would gather a value of shape [3, 10], "
              "which is "
              "cut (dim 1 over tensor: 5+5, as up.weight is): operand 0, dimension 1: needs it "
              "whole (from "
              "up.weight); nothing was gathered. Leave the value whole by \"plan\": {\"up\": "
              "\"replicate\"}, use an operator that keeps the cut, give this one a rule "
              "(oslo::register_rule, docs/adding-a-rule.md), or call oslo::full_tensor(t) where "
              "the gather "
              "is meant; \"strict\": false allows all gathers");
    EXPECT_EQ(text_of(book_of(parallel.mpu())), "");
    EXPECT_TRUE(parallel.plan().gathers.empty());
  });
}

TEST(Strict, WhatKeepsTheCutRunsAsEver) {
  on_strict_ranks([](const Tensor& x) { return torch::gelu(x); },
                  [](Between& model, oslo::ParallelModel& parallel, const Tensor& x) {
                    model->forward(x).sum().backward();
                    EXPECT_EQ(parallel.mpu().tensor_group()->ledger().total().calls, 1);
                  });
}

TEST(Strict, AGatherThatIsMeantIsNoSurprise) {
  on_strict_ranks([](const Tensor& x) { return sorted(oslo::full_tensor(x)); },
                  [](Between& model, oslo::ParallelModel& parallel, const Tensor& x) {
                    model->forward(x).sum().backward();
                    EXPECT_GT(parallel.mpu().tensor_group()->ledger().total("all_gather").calls, 0);
                  });
}

TEST(Strict, HoldsInBackwardToo) {
  on_strict_ranks(
      [](const Tensor& x) {
        Tensor y = torch::gelu(x);
        y.register_hook([](const Tensor& gradient) { return sorted(gradient); });
        return y;
      },
      [](Between& model, oslo::ParallelModel& parallel, const Tensor& x) {
        const Tensor loss = model->forward(x).sum();
        clear(parallel.mpu());
        expect_contains(error_of([&] { loss.backward(); }),
                        {"strict: aten::sort, in a backward pass, would gather", "[3, 10]",
                         "dim 1 over tensor: 5+5"});
        EXPECT_EQ(parallel.mpu().tensor_group()->ledger().total().calls, 0);
      });
}

TEST(Strict, AnExampleThatShowsTheGatherIsRefusedBeforeTheModelIsCut) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    Between model = make_seeded(3, [&] { return Between(sorted); });
    oslo::InitializeOptions how = in(world);
    how.example_inputs = [&] { model->forward(torch::zeros({3, 6})); };
    expect_contains(error_of([&] { oslo::initialize(model, oslo::Config::parse(kStrict), how); }),
                    {"strict: aten::sort", "module up", "[3, 10]", "dim 1 over tensor: 5+5",
                     "as the example", "as up.weight is", "\"plan\": {\"up\": \"replicate\"}"});
    oslo::test::expect_untouched(model);
  });
}

/// Only on the way that training goes: there the operator itself throws.
TEST(Strict, AnExampleThatReadsValuesIsNotBelieved) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    Between model = make_seeded(3, [&] {
      return Between(
          [](const Tensor& x) { return x.sum().item<float>() == 0 ? sorted(x) : torch::relu(x); });
    });
    const Tensor x = torch::ones({3, 6});
    oslo::InitializeOptions how = in(world);
    how.example_inputs = [&] { model->forward(x); };
    auto parallel = oslo::initialize(model, oslo::Config::parse(kStrict), how);
    EXPECT_NO_THROW(model->forward(x));
    EXPECT_THAT(parallel.explain().note, testing::HasSubstr("zeros on shapes"));
  });
}

TEST(Strict, IsAnOptionToo) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    Between model = make_seeded(3, [&] { return Between(sorted); });
    oslo::Config config = oslo::Config::parse(kStrict);
    config.set("strict=false");
    oslo::InitializeOptions how = in(world);
    how.strict = true;
    oslo::initialize(model, config, how);
    expect_contains(error_of([&] { model->forward(torch::ones({3, 6})); }), {"strict: aten::sort"});
  });
}

TEST(Strict, RanksThatDifferInItAreTold) {
  run_as_threads(2, [](World world) {
    Between model = make_seeded(3, [&] { return Between(sorted); });
    oslo::InitializeOptions how = in(world);
    how.strict = world.rank() == 1;
    expect_contains(error_of([&] {
                      oslo::initialize(model, oslo::Config::parse(parity::tensor_parallel(2)), how);
                    }),
                    {"strict", "on every rank"});
  });
}

/// x is cut by a dimension that has to be whole over columns; over rows the plan has it gathered
/// first, which must not have happened.
TEST(Strict, NothingMovesOnAnyAxisBeforeIt) {
  run_as_threads(4, [&](World world) {
    const oslo::MPU mpu(world, oslo::MpuOptions().axes({{"row", 2}, {"column", 2}}));
    const oslo::MeshPtr mesh = mpu.mesh({"row", "column"});
    const auto context = oslo::context_of(mesh);
    const auto cut = [&](std::vector<int64_t> sizes, oslo::Placement row, oslo::Placement column) {
      auto layout = std::make_shared<oslo::Layout>(oslo::make_layout(mesh, {row, column}, sizes));
      return oslo::Value{oslo::local_part(torch::ones(sizes), *layout), layout};
    };
    const auto whole = oslo::Placement::replicate();
    const oslo::AxisUse uses[2];
    const auto resolve = [&] {
      std::vector<oslo::Value> values{
          cut({5, 6}, oslo::Placement::shard(1), oslo::Placement::shard(0)),
          cut({6, 7}, oslo::Placement::shard(1), whole)};
      values[1].use = {uses, "by a test"};
      oslo::resolve({{"xk", "kn"}, {"xn"}, "x"}, values);
    };
    resolve();
    EXPECT_GT(mpu.group("row")->ledger().total().calls, 0);
    EXPECT_GT(mpu.group("column")->ledger().total().calls, 0);
    clear(mpu);
    context->gather_watch = std::make_shared<oslo::StrictGathers>();
    expect_contains(error_of(resolve),
                    {"strict: ", "[5, 6]", "dim 0 over column: 3+2", "needs it whole"});
    EXPECT_EQ(text_of(book_of(mpu)), "");
  });
}

TEST(Strict, AGpt2IsPlannedWithoutAGather) {
  const models::GPT2Options options;
  const Tensor tokens = make_seeded(5, [&] { return torch::randint(options.vocabulary, {4, 11}); });
  run_as_threads(3, [&](World world) {
    at::set_num_threads(1);
    models::GPT2 model = make_seeded(3, [&] { return models::GPT2(options); });
    oslo::InitializeOptions how = in(world);
    how.strict = true;
    how.example_inputs = [&] { model->forward(tokens); };
    auto parallel = oslo::initialize(model, oslo::Config::parse(parity::tensor_parallel(3)), how);
    model->forward(tokens).sum().backward();
  });
}

}  // namespace
}  // namespace explain_test
