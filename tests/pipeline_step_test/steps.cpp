// Steps of a schedule on pipeline stages against one device: losses, every gradient, weights after
// steps; messages and what is held at a time are counted.
#include <gmock/gmock.h>

#include <array>

#include "tests/models/gpt2.h"
#include "tests/pipeline_step_test/eight_layers.h"
#include "tests/support/error_of.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline_parity::boundaries_of;
using pipeline_parity::expect_parity;
using pipeline_parity::Grid;
using pipeline_parity::Outcome;
using pipeline_parity::peak;
using pipeline_parity::Tensors;
using pipeline_parity::Trial;
using torch::Tensor;
namespace F = torch::nn::functional;

class Schedules : public testing::TestWithParam<std::tuple<const char*, int, int>> {};

TEST_P(Schedules, EightLayersTrainAsOnOneDevice) {
  const auto [kind, ranks, micro_batches] = GetParam();
  Trial setup{Grid{1, 1, ranks}, kind, micro_batches};
  setup.sgd = true;
  const auto check = [&](const Outcome& outcome) {
    const int rank = outcome.world.rank();
    const pipeline::Schedule& schedule = outcome.schedule.schedule();
    const auto [below, above] = boundaries_of(schedule, rank);
    EXPECT_EQ(outcome.last.sent, below * micro_batches);
    EXPECT_EQ(outcome.last.peak_in_flight, peak(schedule, rank));
    // An activation a micro-batch forward and its gradient back, over each boundary.
    const auto& ledger = outcome.parallel.mpu().pipeline_group()->ledger();
    const int boundaries = below + above;
    EXPECT_EQ(ledger.total("send").calls, setup.steps * micro_batches * boundaries);
    EXPECT_EQ(ledger.total("receive").calls, setup.steps * micro_batches * boundaries);
    EXPECT_EQ(ledger.total("receive").elements, setup.steps * 12 * kWidth * boundaries);
  };
  expect_parity(
      setup, eight_layers, [](int) { return rows(12); }, mse, check);
}

INSTANTIATE_TEST_SUITE_P(All, Schedules,
                         testing::Combine(testing::Values("naive", "gpipe", "1f1b"),
                                          testing::Values(2, 3, 4), testing::Values(1, 2, 4, 6)),
                         [](const auto& info) {
                           return c10::str(std::string("of_") + std::get<0>(info.param), "_pp",
                                           std::get<1>(info.param), "_m", std::get<2>(info.param));
                         });

INSTANTIATE_TEST_SUITE_P(
    SeveralStages, Schedules,
    testing::Values(std::tuple{"interleaved", 2, 1}, std::tuple{"interleaved", 2, 6},
                    std::tuple{"interleaved", 4, 4}, std::tuple{"zero_bubble", 2, 4},
                    std::tuple{"zero_bubble", 4, 6}, std::tuple{"zbv", 2, 1},
                    std::tuple{"zbv", 2, 6}, std::tuple{"zbv", 4, 4}, std::tuple{"dualpipev", 2, 4},
                    std::tuple{"dualpipev", 2, 6}, std::tuple{"dualpipev", 4, 12}),
    [](const auto& info) {
      return c10::str(std::string("of_") + std::get<0>(info.param), "_pp", std::get<1>(info.param),
                      "_m", std::get<2>(info.param));
    });

TEST(PipelineSchedule, MicroBatchesOfUnequalSizeCountByTheirRows) {
  for (const char* kind : {"naive", "gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"}) {
    for (const int ranks : {1, 2}) {
      expect_parity(
          Trial{Grid{1, 1, ranks}, kind, 3}, eight_layers, [](int) { return rows(8); }, mse);
    }
  }
}

TEST(PipelineSchedule, AtOneStageItAccumulatesAndReplicasMeetOnceAStep) {
  const Trial setup{Grid{2, 1, 1}, "1f1b", 4};
  const auto check = [&](const Outcome& outcome) {
    const auto& ledger = outcome.parallel.mpu().data_group()->ledger();
    EXPECT_EQ(ledger.total("all_reduce").calls, setup.steps);  // one bucket
    EXPECT_EQ(ledger.total("broadcast").calls, 1);             // at the beginning
    EXPECT_EQ(outcome.last.peak_in_flight, 1);
  };
  expect_parity(
      setup, eight_layers, [](int) { return rows(16); }, mse, check);
}

TEST(PipelineSchedule, DataReplicasOfAPipelineMeetOnceAStep) {
  const Trial setup{Grid{2, 1, 2}, "1f1b", 2};
  const auto check = [&](const Outcome& outcome) {
    const auto& ledger = outcome.parallel.mpu().data_group()->ledger();
    EXPECT_EQ(ledger.total("all_reduce").calls, setup.steps);
  };
  expect_parity(
      setup, eight_layers, [](int) { return rows(12); }, mse, check);
}

models::GPT2 small_gpt2() {
  models::GPT2Options options;
  options.vocabulary = 23;
  options.hidden = 12;
  options.heads = 3;
  options.layers = 4;
  return models::GPT2(options);
}

Tensors text(int64_t number) {
  return {torch::randint(23, {number, 7}), torch::randint(23, {number, 7})};
}

const auto next_token = [](auto& model, const Tensors& micro) {
  return F::cross_entropy(model->forward(micro[0]).view({-1, 23}), micro[1].view({-1}));
};

/// The head is the transposed table, on the other end of the pipeline.
TEST(PipelineSchedule, CopiesOfATiedTableStayEqualBitForBit) {
  const std::vector<std::pair<const char*, int>> runs{{"1f1b", 2}, {"1f1b", 4}, {"zero_bubble", 4}};
  for (const auto& [kind, stages] : runs) {
    Trial setup{Grid{1, 1, stages}, kind, 4};
    setup.steps = 10;
    const auto check = [&, stages = stages](const Outcome& outcome) {
      const auto model = outcome.parallel.module_as<models::GPT2Impl>();
      const Tensor& table = model->wte->weight;
      const int rank = outcome.world.rank();
      ASSERT_EQ(is_here(table), rank == 0 || rank == stages - 1);
      EXPECT_EQ(layout(table)->stages(), StageSet::of(0) | StageSet::of(stages - 1));
      const Tensor first = full_tensor(table);  // of stage 0
      if (is_here(table)) {
        EXPECT_TRUE(torch::equal(local_tensor(table), first));
      }
      // Two forward a micro-batch (x, and nothing of the table), and the table's gradient once.
      const auto& ledger = outcome.parallel.mpu().pipeline_group()->ledger();
      const int boundaries = (rank > 0) + (rank < stages - 1);
      EXPECT_EQ(ledger.total("send").calls,
                setup.steps * (4 * boundaries + (is_here(table) ? 1 : 0)));
    };
    expect_parity(
        setup, small_gpt2, [](int) { return text(8); }, next_token, check);
  }
}

/// Nobody told initialize that the table is the head, too: the first step finds out.
TEST(PipelineSchedule, WithoutAnExampleTheFirstStepFindsWhatSeveralStagesUse) {
  Trial setup{Grid{1, 2, 2}, "1f1b", 4};
  setup.example = false;
  const auto check = [](const Outcome& outcome) {
    const auto model = outcome.parallel.module_as<models::GPT2Impl>();
    EXPECT_EQ(layout(model->wte->weight)->stages(), StageSet::of(0) | StageSet::of(1));
    EXPECT_EQ(outcome.last.sent, outcome.parallel.mpu().is_pipeline_first_stage() ? 4 : 0);
  };
  expect_parity(
      setup, small_gpt2, [](int) { return text(8); }, next_token, check);
}

/// Both stages together move over the tensor ranks what one stage moves: operators of the other
/// stage, which each goes through for shapes, move nothing.
TEST(PipelineSchedule, CollectivesOfOtherStagesAreNotRunNorCounted) {
  const auto moved = [](int stages) {
    std::array<Traffic, 2> traffic;
    Trial setup{Grid{1, 2, stages}, "1f1b", 2};
    const auto note = [&](const Outcome& outcome) {
      const MPU& mpu = outcome.parallel.mpu();
      if (mpu.get_tensor_parallel_rank() != 0) return;
      traffic[mpu.get_pipeline_parallel_rank()] = mpu.tensor_group()->ledger().total("all_reduce");
    };
    expect_parity(
        setup, small_gpt2, [](int) { return text(8); }, next_token, note);
    return traffic;
  };
  const auto one = moved(1), two = moved(2);
  EXPECT_GT(two[0].calls, 0);
  EXPECT_GT(two[1].calls, 0);
  // A norm more a step; and both stages have the table, so that both look the words up in it.
  const int64_t norms = 3, lookups = 3 * 2;
  EXPECT_EQ(two[0].calls + two[1].calls, one[0].calls + norms + lookups);
}

/// A table of 800 elements on both stages, each of gradient 1.
TEST(PipelineSchedule, NormsCountACopyOnce) {
  run_as_threads(2, [](World world) {
    struct Net : torch::nn::Module {
      Net() {
        wte = register_module("wte", torch::nn::Embedding(100, 8));
        head = register_module("head", torch::nn::Linear(8, 100));
        head->weight = wte->weight;
      }
      torch::nn::Embedding wte{nullptr};
      torch::nn::Linear head{nullptr};
    };
    auto model = make_seeded(1, [] { return std::make_shared<Net>(); });
    InitializeOptions how;
    how.world = world;
    const auto config =
        Config::parse(R"({"parallel": {"pipeline": 2}, "stages": {"wte": 0, "head": 1}})");
    const ParallelModel parallel =
        initialize(std::shared_ptr<torch::nn::Module>(model), config, how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    schedule.forward_backward_step({torch::zeros({2}, torch::kLong)}, [&](const Tensors& micro) {
      const Tensor nothing = model->head(model->wte(micro[0])).sum() * 0;
      return nothing + model->wte->weight.sum();
    });
    EXPECT_TRUE(torch::equal(local_tensor(model->wte->weight.grad()), torch::ones({100, 8})));
    EXPECT_NEAR(parallel.clip_grad_norm_(1e9), std::sqrt(800.), 1e-4);
    EXPECT_NEAR(parallel.clip_grad_norm_(1e9, 1.0), 800, 1e-3);
    EXPECT_NEAR(parallel.clip_grad_norm_(std::sqrt(800.) / 2), std::sqrt(800.), 1e-4);
    EXPECT_TRUE(
        torch::allclose(local_tensor(model->wte->weight.grad()), torch::full({100, 8}, 0.5)));
  });
}

TEST(PipelineSchedule, LengthsMayChangeFromStepToStep) {
  const auto batch = [](int step) {
    return Tensors{torch::randint(23, {6, 3 + 2 * step}), torch::randint(23, {6, 3 + 2 * step})};
  };
  for (const char* kind : {"1f1b", "interleaved", "zero_bubble", "zbv"}) {
    expect_parity(Trial{Grid{1, 1, 2}, kind, 3}, small_gpt2, batch, next_token);
  }
}

/// Everything that may cross: a skip over two stages, two tensors at a boundary, integers and
/// masks, a branch without gradient, several outputs of one operator, a module that all stages use,
/// values that the forward reads, shapes that depend on values, and a stage without parameters.
struct GraphImpl : torch::nn::Module {
  GraphImpl() {
    table = register_module("table", torch::nn::Embedding(11, kWidth));
    a = register_module("a", torch::nn::Linear(kWidth, 3 * kWidth));
    shared = register_module("shared", torch::nn::LayerNorm(std::vector<int64_t>{kWidth}));
    b = register_module("b", torch::nn::Linear(kWidth, kWidth));
    c = register_module("c", torch::nn::Linear(kWidth, kWidth));
    scale = register_buffer("scale", torch::linspace(0.5, 1.5, kWidth, torch::kDouble));
  }

  Tensor forward(const Tensor& tokens) {
    const Tensor start = table(tokens);
    const auto parts = a(start).chunk(3, -1);
    const auto top = parts[0].max(-1, /*keepdim=*/true);
    const Tensor order = std::get<1>(top), mask = parts[1] > 0;
    const Tensor frozen = parts[2].detach().abs() * scale;
    Tensor x = b(shared(parts[0] + parts[1] * parts[2]));
    x = x.masked_fill(mask, 0.25) + order.to(x.dtype()) * 0.01 + frozen;
    if (x.abs().max().item<double>() > 1.5) x = x / 2;
    reads += 1;
    const int64_t above = (x > 0).nonzero().size(0);
    x = c(shared(x) * scale + start) + 1e-3 * static_cast<double>(above);
    return x.sum(-1);
  }

  torch::nn::Embedding table{nullptr};
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
  torch::nn::LayerNorm shared{nullptr};
  Tensor scale;
  int reads = 0;
};
TORCH_MODULE(Graph);

TEST(PipelineSchedule, AnyGraphTrainsAsOnOneDevice) {
  const auto batch = [](int) {
    return Tensors{torch::randint(11, {8, 4}), torch::randn({8, 4}, torch::kDouble)};
  };
  for (const std::string& kind : pipeline::schedule_kinds()) {
    SCOPED_TRACE(kind);
    const int ranks = 4 / pipeline::default_chunks(kind);
    Trial setup{Grid{1, 1, ranks}, kind, 4};
    setup.config = c10::str(R"({"parallel": {"pipeline": {"size": )", ranks, R"(, "schedule": ")",
                            kind, R"("}}, "stages": {"table": 0, "a": 0, "b": 1, "c": 3,
                                                     "shared": 1, "scale": 0}})");
    setup.batch_coupled = true;  // it looks at the largest value of all
    expect_parity(
        setup, [] { return Graph(); }, batch, mse);
  }
}

}  // namespace
}  // namespace oslo::test
