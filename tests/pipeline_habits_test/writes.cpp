// Writes of a stage into what lies on another one: activations and ordinary tensors move there,
// statistics live on the stage that writes them. Each against one device.
#include <gmock/gmock.h>

#include "tests/pipeline_habits_test/habit_net.h"
#include "tests/support/error_of.h"

namespace oslo::test {
namespace {

Tensor distance(const Tensor& y, const Tensor& wanted) {
  return torch::mse_loss(y, wanted);
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  if (at == std::string::npos) throw std::runtime_error(what + " is not in " + text);
  return text.replace(at, what.size(), by);
}

/// `sent`: the messages of the last step's forwards, by rank.
void expect_trained(const Habit& habit, Trial trial, std::vector<int64_t> sent = {}) {
  SCOPED_TRACE(trial.grid.name() + " " + trial.kind);
  trial.batch_coupled = true;
  const auto after = [&](const Outcome& outcome) {
    const int rank = outcome.parallel.mpu().rank("pipeline");
    if (!sent.empty()) {
      EXPECT_EQ(outcome.last.sent, sent[rank]);
    }
  };
  expect_parity(
      trial, [] { return HabitNet(); }, [](int) { return habit_batch(); },
      [&](auto& net, const Tensors& micro) { return habit(*net, micro); }, after);
}

Trial trial_of(const Grid& grid, const char* kind = "1f1b") {
  Trial trial{grid, kind};
  trial.config = habit_config(grid, kind);
  return trial;
}

/// A residual stream whose last addend is the next stage's.
Tensor adds_to_the_stream(HabitNetImpl& net, const Tensors& micro) {
  Tensor h = net.layer(0, micro[0]);
  const Tensor kept = h.sigmoid();  // of the value from before
  h += net.layer(3, micro[1]);
  h.mul_(0.5);
  return distance(h.tanh(), micro[1]) + kept.pow(2).mean();
}

TEST(PipelineWrites, AnActivationMovesToTheStageThatWritesIt) {
  for (const char* kind : {"gpipe", "1f1b", "zero_bubble"}) {
    // The activation, and the mean of what was kept, cross once for each of 4 micro-batches.
    expect_trained(adds_to_the_stream, trial_of({1, 1, 2}, kind), {8, 0});
    expect_trained(adds_to_the_stream, trial_of({1, 1, 4}, kind), {8, 0, 0, 0});
    expect_trained(adds_to_the_stream, trial_of({1, 2, 2}, kind), {8, 0});
    expect_trained(adds_to_the_stream, trial_of({2, 2, 2}, kind), {8, 0});
  }
}

TEST(PipelineWrites, AnActivationMovesWithoutGradientsToo) {
  Trial trial = trial_of({1, 1, 2});
  trial.evaluates = true;
  expect_trained(adds_to_the_stream, trial);
}

/// Of a rank's own stages the later one writes: nothing is sent, and each has its backward.
TEST(PipelineWrites, AnActivationMovesBetweenStagesOfOneRank) {
  const Trial trial = trial_of({1, 1, 2}, "interleaved");
  expect_trained(
      [](HabitNetImpl& net, const Tensors& micro) {
        Tensor h = net.layer(0, micro[0]);
        h += net.layer(2, micro[1]);
        h += net.layer(3, torch::tanh(h));
        return distance(h, micro[1]);
      },
      trial);
}

/// Each layer adds to it, wherever it is, and sees what those before have added.
TEST(PipelineWrites, AnOrdinaryTensorMovesFromStageToStage) {
  for (const Grid& grid : {Grid{1, 1, 2}, Grid{1, 1, 4}, Grid{1, 2, 2}}) {
    expect_trained(
        [](HabitNetImpl& net, const Tensors& micro) {
          const int64_t rows = micro[0].size(0);
          Tensor sum = torch::zeros({rows, kWide}, micro[0].options());
          Tensor h = micro[0];
          for (int i = 0; i < kLayers; ++i) {
            h = torch::tanh(net.layer(i, h)) + 0.1 * sum;
            sum.index_add_(0, torch::arange(rows), h);
            sum.add_(h, 0.5);
          }
          return distance(sum, micro[1]);
        },
        trial_of(grid));
  }
}

/// It crosses, is written where it lies, and crosses again.
TEST(PipelineWrites, AnOrdinaryTensorCrossesAgainAfterItWasWritten) {
  expect_trained(
      [](HabitNetImpl& net, const Tensors& micro) {
        const Tensor h = torch::tanh(net.layer(0, micro[0]));
        Tensor sum = torch::zeros_like(micro[0]);
        sum.add_(h);
        const Tensor first = torch::tanh(sum + net.layers[3]->bias);
        sum.add_(h, 2);
        return distance(torch::tanh(sum - net.layers[3]->bias) * first, micro[1]);
      },
      trial_of({1, 1, 2}), {8, 0});
}

/// The table is the head as well: what comes of it lies on both stages, and then on one.
TEST(PipelineWrites, AValueOfSeveralStagesThatOneOfThemWrites) {
  for (const char* kind : {"gpipe", "1f1b", "zero_bubble"}) {
    expect_trained(
        [](HabitNetImpl& net, const Tensors& micro) {
          Tensor h = net.table(micro[2]).mean(1);
          h += net.layer(0, micro[0]);
          const Tensor scores = torch::mm(net.layer(3, h), net.table->weight.t());
          return distance(scores.slice(1, 0, kWide), micro[1]);
        },
        trial_of({1, 1, 2}, kind));
  }
}

/// What a step of a pipeline throws on each rank; its micro-batches are one of zeros, one of ones.
std::vector<std::string> errors_of_step(
    const Grid& grid, const std::string& config,
    const std::function<Tensor(HabitNetImpl&, const Tensor&)>& loss) {
  std::vector<std::string> errors(grid.size());
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    HabitNet net = make_seeded(7, [] { return HabitNet(); });
    InitializeOptions how;
    how.world = world;
    const ParallelModel parallel = initialize(net, Config::parse(config), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    errors[world.rank()] = error_of([&] {
      const Tensor rows = torch::cat({torch::zeros({2, kWide}), torch::ones({2, kWide})});
      schedule.forward_backward_step({rows},
                                     [&](const Tensors& micro) { return loss(*net, micro[0]); });
    });
  });
  return errors;
}

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(PipelineWrites, WhatTheWriteWouldNotReachIsRefusedOnEveryRank) {
  const Grid grid{1, 1, 2};
  // A view of a tensor that is still there.
  EXPECT_THAT(
      errors_of_step(grid, habit_config(grid),
                     [](HabitNetImpl& net, const Tensor& x) {
                       const Tensor h = net.layer(0, x);
                       Tensor rows = h.flatten();
                       rows += net.layer(3, x).flatten();
                       return h.mean();
                     }),
      Each(AllOf(HasSubstr("writes into a tensor that lives on stage 0"), HasSubstr("x = x + y"))));
  // A tensor of which a view is still there.
  EXPECT_THAT(errors_of_step(grid, habit_config(grid),
                             [](HabitNetImpl& net, const Tensor& x) {
                               Tensor h = torch::tanh(net.layer(0, x));
                               const Tensor left = h.narrow(1, 0, 2);
                               h += net.layer(3, x);
                               return h.mean() + left.mean();
                             }),
              Each(HasSubstr("elements from before")));
}

/// What moves gets another place in the graph, which nothing records there, or counts no writes.
TEST(PipelineWrites, MovesWithoutARecordAreRefusedOnEveryRank) {
  const Grid grid{1, 1, 2};
  const auto adds = [](HabitNetImpl& net, const Tensor& x, const Tensor& h) {
    Tensor written = h;
    written += net.layer(3, x);
    return written.mean();
  };
  const auto refused =
      Each(AllOf(HasSubstr("writes into a tensor that lives on stage 0"), HasSubstr("x = x + y")));
  EXPECT_THAT(errors_of_step(grid, habit_config(grid),
                             [&](HabitNetImpl& net, const Tensor& x) {
                               const Tensor h = net.layer(0, x);
                               const torch::NoGradGuard no_grad;
                               return adds(net, x, h);
                             }),
              refused);
  EXPECT_THAT(errors_of_step(grid, habit_config(grid),
                             [&](HabitNetImpl& net, const Tensor& x) {
                               const c10::InferenceMode inference;
                               return adds(net, x, net.layer(0, x));
                             }),
              refused);
}

/// The statistics go where the batch is, though the norm was given to the first stage.
TEST(PipelineWrites, StatisticsLiveOnTheStageThatWritesThem) {
  for (const bool example : {true, false}) {
    for (const Grid& grid : {Grid{1, 1, 2}, Grid{1, 1, 4}, Grid{1, 2, 2}}) {
      Trial trial = trial_of(grid);
      trial.example = example;
      trial.evaluates = true;
      trial.config =
          replaced(trial.config, c10::str(R"("norm": )", grid.pipeline - 1), R"("norm": 0)");
      expect_trained(
          [](HabitNetImpl& net, const Tensors& micro) {
            const Tensor h = torch::relu(net.norm(net.layer(3, net.layer(0, micro[0]))));
            return distance(net.layer(3, h), micro[1]);
          },
          trial);
    }
  }
}

/// Both uses move the same statistics, one after the other.
TEST(PipelineWrites, StatisticsOfANormThatTwoStagesUse) {
  for (const bool example : {true, false}) {
    Trial trial = trial_of({1, 1, 2});
    trial.example = example;
    trial.config = replaced(trial.config, R"("norm": 1)", R"("norm": 0)");
    expect_trained(
        [](HabitNetImpl& net, const Tensors& micro) {
          Tensor h = torch::relu(net.norm(net.layer(0, micro[0])));
          h = torch::relu(net.norm(net.layer(3, h)));
          return distance(h, micro[1]);
        },
        trial);
  }
}

/// The first micro-batch does not show it.
TEST(PipelineWrites, StatisticsThatOtherStagesHoldAreRefusedOnEveryRank) {
  const Grid grid{1, 1, 2};
  const std::string config = replaced(habit_config(grid), R"("norm": 1)", R"("norm": [0, 1])");
  const auto errors = errors_of_step(grid, config, [](HabitNetImpl& net, const Tensor& x) {
    const Tensor h = net.layer(3, net.layer(0, x));
    const bool first = x.sum().item<double>() == 0;
    return first ? h.mean() : net.norm(h).pow(2).mean();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("writes norm.running_mean"), HasSubstr("stages 0, 1"),
                                 HasSubstr("\"norm.running_mean\": 1"))));
}

}  // namespace
}  // namespace oslo::test
