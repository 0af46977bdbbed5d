// Steps of few rows, of one micro-batch, and of very many values; and errors of several models.
#include <gmock/gmock.h>

#include "tests/pipeline_habits_test/training_program.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct OnRanks {
  HabitNet net{nullptr}, reference{nullptr};
  std::optional<ParallelModel> parallel;

  OnRanks(World world, const std::string& kind, const Grid& grid = {1, 1, 2}) {
    at::set_num_threads(1);
    net = parity::make_seeded(7, [] { return HabitNet(); });
    reference = parity::make_seeded(7, [] { return HabitNet(); });
    make_double(*net);
    make_double(*reference);
    InitializeOptions how;
    how.world = std::move(world);
    parallel = initialize(net, Config::parse(habit_config(grid, kind)), how);
  }
};

/// The last batch of an epoch: each row is a micro-batch of its own.
TEST(PipelineSizesOfSteps, FewerRowsThanMicroBatches) {
  for (const char* kind : {"1f1b", "zero_bubble", "interleaved", "zbv", "dualpipev"}) {
    SCOPED_TRACE(kind);
    run_as_threads(2, [&](World world) {
      OnRanks on(world, kind);
      PipelineSchedule schedule(*on.parallel, PipelineOptions().num_microbatches(4).kind(kind));
      for (const int64_t rows : {8, 3, 1}) {
        const Tensors batch = batch_of(0, rows);
        on.net->zero_grad();
        on.reference->zero_grad();
        const Tensor expected = deep(*on.reference, batch);
        expected.backward();
        const auto step = schedule.forward_backward_step(
            batch, [&](const Tensors& micro) { return deep(*on.net, micro); });
        EXPECT_NEAR(step.loss.item<double>(), expected.item<double>(), 1e-9);
        pipeline_parity::expect_gradients(*on.net, *on.reference);
        const auto evaluated = schedule.forward_backward_step(
            batch, [&](const Tensors& micro) { return deep(*on.net, micro); },
            StepOptions().forward_only(true));
        EXPECT_NEAR(evaluated.loss.item<double>(), expected.item<double>(), 1e-9);
      }
    });
  }
}

/// A graph: as many rows as it has nodes, and as many columns as edges.
TEST(PipelineSizesOfSteps, OneMicroBatchOfUnequalRows) {
  const auto loss = [](HabitNetImpl& net, const Tensors& graph) {
    const Tensor h = net.layer(0, graph[0]);
    const Tensor told = h.index_add(0, graph[1][0], h.index_select(0, graph[1][1]));
    return net.layer(3, told).square().mean() * graph[2];
  };
  run_as_threads(2, [&](World world) {
    OnRanks on(world, "1f1b");
    PipelineSchedule schedule(*on.parallel, PipelineOptions().num_microbatches(1));
    const Tensors graph{torch::arange(30, torch::kDouble).view({5, kWide}) / 30,
                        torch::arange(18).view({2, 9}) % 5, torch::full({}, 3.0, torch::kDouble)};
    const Tensor expected = loss(*on.reference, graph);
    expected.backward();
    const auto step = schedule.forward_backward_step(
        graph, [&](const Tensors& micro) { return loss(*on.net, micro); });
    EXPECT_NEAR(step.loss.item<double>(), expected.item<double>(), 1e-9);
    pipeline_parity::expect_gradients(*on.net, *on.reference);
  });
}

/// Two cells in turns, a step of time after the other: what the first gives crosses 1,100 times.
TEST(PipelineSizesOfSteps, ManyValuesCross) {
  HabitTrial how;
  how.runs = {{{1, 1, 2}, "1f1b"}, {{1, 1, 2}, "zbv"}};
  how.micro_batches = 2;
  expect_habit(
      [](HabitNetImpl& net, const Tensors& micro) {
        Tensor low = torch::zeros_like(micro[0]), high = low;
        for (int time = 0; time < 1100; ++time) {
          low = torch::tanh(net.layer(0, low + micro[0]));
          high = torch::tanh(net.layer(3, high + low));
        }
        return error_of_rows(high, micro[1]);
      },
      how);
}

/// A program goes on with another model, whose error is its own.
TEST(PipelineSizesOfSteps, AnErrorOfOneModelIsNotThatOfAnother) {
  run_as_threads(2, [&](World world) {
    const auto error_of_step = [&](const Grid& grid, const std::string& text) {
      OnRanks on(world, "1f1b", grid);
      PipelineSchedule schedule(*on.parallel, PipelineOptions().num_microbatches(2));
      try {
        schedule.forward_backward_step(
            batch_of(0), [&](const Tensors&) -> Tensor { throw std::runtime_error(text); });
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    for (const Grid grid : {Grid{1, 1, 2}, Grid{1, 2, 1}}) {
      EXPECT_THAT(error_of_step(grid, "no more data"), HasSubstr("no more data"));
      EXPECT_THAT(error_of_step(grid, "no such word"),
                  AllOf(HasSubstr("no such word"), Not(HasSubstr("no more data"))));
    }
  });
}

}  // namespace
}  // namespace oslo::test
