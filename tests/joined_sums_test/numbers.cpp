// Parallel branches whose sum is all-reduced once: numbers of plain LibTorch, exact counts.
#include <gmock/gmock.h>

#include <sstream>

#include "tests/joined_sums_test/parallel_block.h"
#include "tests/support/parity.h"
#include "tests/support/under_autocast.h"

namespace joined_sums {
namespace {

using oslo::run_as_threads;
using oslo::World;
using parity::expect_close;
using parity::make_seeded;

constexpr int64_t kBatch = 4, kTime = 5, kLayers = 2;
constexpr parity::Tolerance kSums{1e-9, 1e-9};

Tensor batch(int step) {
  return make_seeded(100 + step, [&] {
    return torch::randn({kBatch, kTime, 12}, torch::kFloat64);
  });
}

struct Case {
  Form form = Form::gptj;
  int world = 2;
  std::string more = {};  ///< settings, "key=value" each, parted by ';'
  double dropout = 0;
  bool as_rows = false;
  int64_t forward = kLayers;  ///< all-reduces of a forward; < 0: not compared
  int64_t backward = kLayers;
  Look look = {}, example_look = {};  ///< of every rank
  bool first_alone = false;           ///< of rank 0 alone
  bool eval_example = false;
  int64_t votes = 0;  ///< of branches that end as the example did not show
};

oslo::Config config_of(const std::string& settings) {
  oslo::Config config = oslo::Config::parse(parity::tensor_parallel(2));
  std::istringstream parts(settings);
  for (std::string setting; std::getline(parts, setting, ';');) config.set(setting);
  return config;
}

/// A stack on one device, and the same under initialize, which has seen its forward of `x`.
struct Both {
  Both(const World& world, Form form, const Tensor& x, const std::string& settings = {})
      : reference(make(form, x)), model(make(form, x)), parallel([&] {
          at::set_num_threads(1);
          oslo::InitializeOptions how;
          how.world = world;
          how.example_inputs = [&] { model->forward(x); };
          return oslo::initialize(model, config_of(settings), how);
        }()) {}

  static Stack make(Form form, const Tensor& x) {
    return make_seeded(3, [&] {
      Stack stack(Options{.form = form}, kLayers);
      stack->to(x.scalar_type());
      return stack;
    });
  }
  oslo::Ledger& ledger() const { return parallel.mpu().tensor_group()->ledger(); }

  Stack reference, model;
  oslo::ParallelModel parallel;
};

void expect_joined(const Case& test) {
  const std::vector<Tensor> batches{batch(0), batch(1), batch(2)};
  run_as_threads(test.world, [&](World world) {
    at::set_num_threads(1);
    const Options options{.form = test.form, .dropout = test.dropout, .as_rows = test.as_rows};
    const auto make = [&] {
      Stack stack(options, kLayers);
      stack->to(torch::kFloat64);
      return stack;
    };
    Stack reference = make_seeded(3, make), model = make_seeded(3, make);
    const auto looks = [&](const Look& look) {
      return !test.first_alone || world.rank() == 0 ? look : Look();
    };
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(batches[0]); };
    model->look = looks(test.example_look);
    if (test.eval_example) model->eval();
    auto parallel = oslo::initialize(model, config_of(test.more), how);
    model->train();
    model->look = looks(test.look);
    reference->look = test.look;
    const oslo::MPU& mpu = parallel.mpu();
    const int64_t replicas = mpu.get_data_parallel_world_size();
    const auto own = [&](const Tensor& whole) {
      return whole.tensor_split(replicas, 0)[mpu.get_data_parallel_rank()];
    };
    oslo::DistributedDataParallel<Stack> ddp(model, mpu.get_data_parallel_group());
    torch::optim::AdamW mine(model->parameters(), torch::optim::AdamWOptions(1e-2));
    torch::optim::AdamW theirs(reference->parameters(), torch::optim::AdamWOptions(1e-2));
    oslo::Ledger& ledger = mpu.tensor_group()->ledger();
    for (int step = 0; step < 3; ++step) {
      mine.zero_grad();
      theirs.zero_grad();
      const Tensor expected = reference->forward(batches[step]);
      expected.square().mean().backward();
      ledger.clear();
      const Tensor output = ddp.forward(own(batches[step]));
      const int64_t forward = ledger.total("all_reduce").calls;
      output.square().mean().backward();
      const int64_t both = ledger.total("all_reduce").calls;
      if (test.forward >= 0) {
        EXPECT_EQ(forward, test.forward);
        EXPECT_EQ(both - forward, test.backward);
        EXPECT_EQ(ledger.total("all_gather").calls, test.votes);
        const int64_t ranks = mpu.tensor_group()->size();
        EXPECT_EQ(ledger.total("all_reduce").elements,
                  both * 2 * (ranks - 1) * (kBatch / replicas * kTime * 12 / ranks));
      }
      if (test.dropout > 0) continue;  // ranks that are threads draw from one generator
      expect_close(oslo::full_tensor(output), own(expected), "output", kSums);
      parity::expect_gradients(*model, *reference, kSums);
      mine.step();
      theirs.step();
    }
    if (test.dropout > 0) return;
    parity::expect_weights(*model, *reference, {1e-6, 1e-7});
  });
}

TEST(JoinedSums, OneAllReduceABlockEachWay) {
  expect_joined({});
  expect_joined({.form = Form::palm});
  expect_joined({.form = Form::neox, .backward = 2 * kLayers});
}

TEST(JoinedSums, OfMatrices) {
  expect_joined({.as_rows = true, .backward = 2 * kLayers});  // each product has its own rows
}

TEST(JoinedSums, OnThreeRanks) {
  expect_joined({.world = 3, .more = "model_parallelism.tensor_parallel_size=3"});
}

TEST(JoinedSums, OnPipelineStages) {
  run_as_threads(4, [&](World world) {
    const Tensor x = batch(0);
    Both both(world, Form::palm, x, "model_parallelism.pipeline_parallel_size=2");
    oslo::PipelineSchedule schedule(both.parallel, oslo::PipelineOptions().num_microbatches(2));
    both.ledger().clear();
    schedule.forward_backward_step({x}, [&](const std::vector<Tensor>& micro) {
      return both.model->forward(micro[0]).square().mean();
    });
    // A block here, micro-batches, each way.
    EXPECT_EQ(both.ledger().total("all_reduce").calls, 2 * 2);
    both.reference->forward(x).square().mean().backward();
    torch::optim::SGD mine(both.model->parameters(), 0.5),
        theirs(both.reference->parameters(), 0.5);
    mine.step();
    theirs.step();
    parity::expect_weights(*both.model, *both.reference, {});
  });
}

TEST(JoinedSums, WithoutGradients) {
  run_as_threads(2, [&](World world) {
    const Tensor x = batch(0).to(torch::kFloat);
    Both both(world, Form::gptj, x);
    const torch::NoGradGuard none;
    const Tensor expected = both.reference->forward(x);
    expect_close(both.model->forward(x), expected, "output", {1e-5, 1e-6});
    EXPECT_EQ(both.ledger().total("all_reduce").calls, kLayers);
    const c10::InferenceMode inference;
    expect_close(both.model->forward(x), expected, "output in inference mode", {1e-5, 1e-6});
  });
}

TEST(JoinedSums, UnderAutocast) {
  run_as_threads(2, [&](World world) {
    const Tensor x = batch(0).to(torch::kFloat);
    Both both(world, Form::gptj, x, "amp.enabled=true");
    const Tensor y = oslo::full_tensor(both.model->forward(x));
    EXPECT_EQ(both.ledger().total("all_reduce").calls, kLayers);
    y.square().mean().backward();
    Tensor expected;
    {
      const oslo::test::UnderAutocast autocast(torch::kBFloat16);
      expected = both.reference->forward(x);
    }
    expected.square().mean().backward();
    expect_close(y, expected, "output", {3e-2, 3e-2});
    parity::expect_gradients(*both.model, *both.reference, {5e-2, 5e-3});
  });
}

TEST(JoinedSums, BesideDataParallelRanks) {
  expect_joined({.world = 4});
}

TEST(JoinedSums, InRecomputedLayers) {
  expect_joined({.more = "activation_checkpoint.enabled=true", .forward = -1});
  expect_joined({.form = Form::palm, .more = "activation_checkpoint.enabled=true", .forward = -1});
}

TEST(JoinedSums, ADropoutThatDropsEndsABranch) {
  expect_joined({.dropout = 0.3, .forward = 2 * kLayers});
  expect_joined(
      {.dropout = 0.3, .forward = 2 * kLayers, .eval_example = true, .votes = 2 * kLayers});
}

/// A number that one rank alone looks at, which the example did not show, would be a wrong one.
TEST(JoinedSums, WhatOneRankAloneLooksAtIsRefused) {
  std::string of_first;
  const auto run = [&] {
    run_as_threads(2, [&](World world) {
      const Tensor x = torch::ones({2, 3, 12});
      Both both(world, Form::gptj, x);
      const auto forward = [&] { both.model->forward(x); };
      if (world.rank() == 1) return forward();
      both.model->look = [](Tensor& branch) { branch.norm().item<float>(); };
      try {
        forward();
      } catch (const oslo::PeerError& error) {
        of_first = error.what();
        throw;
      }
    });
  };
  EXPECT_THROW(run(), oslo::PeerError);  // on both
  EXPECT_THAT(of_first, testing::HasSubstr("one branch of a sum"));
}

/// What the example did not show ends the branch where it is.
TEST(JoinedSums, WhatLooksAtABranchEndsItOnAllRanks) {
  const std::vector<Look> looks{
      [](Tensor& branch) { branch.register_hook([](Tensor g) { return g * 2; }); },
      [](Tensor& branch) { branch.norm().item<double>(); },
      [](Tensor& branch) { branch = branch * 2; },
      [](Tensor& branch) { branch.mul_(2); },
      [](Tensor& branch) { branch = branch.clone().detach() + branch; },
      [](Tensor& branch) { branch.retain_grad(); },
      [](Tensor& branch) {
        const torch::NoGradGuard none;
        branch.sum();
      },
  };
  for (const Look& look : looks) {
    expect_joined({.forward = 2 * kLayers, .look = look, .votes = 2 * kLayers});
    expect_joined({.forward = 2 * kLayers, .look = look, .example_look = look});
  }
}

TEST(JoinedSums, WhatOneRankPrintsInTheExampleIsReducedOnAll) {
  const Look print = [](Tensor& branch) { branch.norm().item<double>(); };
  expect_joined(
      {.forward = 2 * kLayers, .look = print, .example_look = print, .first_alone = true});
}

}  // namespace
}  // namespace joined_sums
