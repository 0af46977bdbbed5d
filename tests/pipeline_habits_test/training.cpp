// What training programs do around the steps of a schedule, each against the same program on one
// device.
#include <gtest/gtest.h>

#include "tests/pipeline_habits_test/training_program.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

/// Also of the layers that two stages have copies of.
TEST(PipelineTraining, GradientsAddUpOverSteps) {
  TrainingProgram program{momentum, false,
                          [](HabitNet& net, Optimizer& optimizer, const Step& step) {
                            for (int i = 0; i < 4; ++i) {
                              step(batch_of(i), false);
                              if (i % 2 == 0) continue;
                              optimizer.step();
                              if (i == 1) net->zero_grad(/*set_to_none=*/false);
                            }
                          }};
  program.loss = [](HabitNetImpl& net, const Tensors& micro) {
    return deep(net, {net.layer(0, net.layer(3, micro[0])), micro[1], micro[2]});
  };
  expect_program_everywhere(program);
}

TEST(PipelineTraining, EvaluationsBetweenSteps) {
  TrainingProgram program{momentum, false,
                          [](HabitNet& net, Optimizer& optimizer, const Step& step) {
                            for (int i = 0; i < 3; ++i) {
                              net->train();
                              optimizer.zero_grad();
                              step(batch_of(i), false);
                              net->eval();
                              step(batch_of(50 + i), true);
                              optimizer.step();
                              step(batch_of(50 + i), true);
                            }
                          }};
  program.loss = [](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = net.norm(net.layer(1, micro[0]));
    return deep(net, {h, micro[1], micro[2]});
  };
  expect_program(program, {1, 1, 2}, "1f1b", 2);
  expect_program(program, {1, 1, 4}, "gpipe", 2);
  expect_program(program, {1, 2, 2}, "1f1b", 2);
  expect_program(program, {1, 1, 2}, "dualpipev", 4);
  expect_program(program, {1, 2, 2}, "zero_bubble", 2);
}

TEST(PipelineTraining, BareForwardsBetweenSteps) {
  TrainingProgram program{
      momentum, false, [](HabitNet& net, Optimizer& optimizer, const Step& step) {
        for (int i = 0; i < 3; ++i) {
          optimizer.zero_grad();
          step(batch_of(i), false);
          optimizer.step();
          const torch::NoGradGuard no_grad;
          Tensor x = batch_of(60)[0];
          for (int k = 0; k < kLayers; ++k) x = torch::tanh(net->layer(k, x));
          step({full_tensor(x), x.new_zeros({8, kWide}), batch_of(60)[2]}, true);
        }
      }};
  expect_program(program, {1, 1, 2}, "1f1b", 2);
  expect_program(program, {1, 2, 2}, "1f1b", 2);
  expect_program(program, {1, 1, 2}, "interleaved", 2);
}

TEST(PipelineTraining, RowsThatNothingDivides) {
  TrainingProgram program{momentum, false, [](HabitNet&, Optimizer& optimizer, const Step& step) {
                            for (const int64_t rows : {10, 14, 6}) {
                              optimizer.zero_grad();
                              step(batch_of(static_cast<int>(rows), rows), false);
                              optimizer.step();
                            }
                          }};
  expect_program(program, {1, 2, 2}, "1f1b", 3);
  expect_program(program, {1, 1, 4}, "gpipe", 4);
  expect_program(program, {1, 1, 2}, "zbv", 3);
}

/// Of other kinds and numbers of micro-batches, in turn; and the model becomes another type on the
/// way.
TEST(PipelineTraining, SeveralSchedulesOfOneModel) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    HabitNet net = make_seeded(7, [] { return HabitNet(); }),
             reference = make_seeded(7, [] { return HabitNet(); });
    InitializeOptions how;
    how.world = world;
    const ParallelModel parallel = initialize(net, Config::parse(habit_config({1, 1, 2})), how);
    PipelineSchedule many(parallel, PipelineOptions().num_microbatches(4).kind("gpipe"));
    PipelineSchedule two(parallel, PipelineOptions().num_microbatches(2).kind("1f1b"));
    PipelineSchedule divides(parallel, PipelineOptions().num_microbatches(4).kind("zero_bubble"));
    const std::vector<PipelineSchedule*> in_turn{&many, &two, &divides};
    net->to(torch::kDouble);
    reference->to(torch::kDouble);
    for (int i = 0; i < 6; ++i) {
      const Tensors batch = batch_of(i);
      const Tensor expected = deep(*reference, batch);
      expected.backward();
      const auto result = in_turn[i % 3]->forward_backward_step(
          batch, [&](const Tensors& micro) { return deep(*net, micro); });
      EXPECT_NEAR(result.loss.item<double>(), expected.item<double>(), 1e-9);
      pipeline_parity::expect_gradients(*net, *reference);
    }
  });
}

TEST(PipelineTraining, ACheckpointInTheMiddle) {
  const std::vector<HabitRun> runs{{{1, 1, 2}, "1f1b"}, {{1, 2, 2}, "1f1b"}, {{1, 2, 2}, "zbv"}};
  for (const auto& [grid, kind] : runs) {
    SCOPED_TRACE(grid.name() + " " + kind);
    const TemporaryDirectory folder;
    run_as_threads(grid.size(), [&, grid = grid, kind = kind](World world) {
      const auto make = [] {
        HabitNet net;
        make_double(*net);
        return net;
      };
      const auto run = [&](HabitNet& net, const ParallelModel& parallel, int first, int last) {
        torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
        PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
        for (int i = first; i < last; ++i) {
          optimizer.zero_grad();
          schedule.forward_backward_step(batch_of(i),
                                         [&](const Tensors& micro) { return deep(*net, micro); });
          optimizer.step();
        }
      };
      InitializeOptions how;
      how.world = world;
      const auto config = Config::parse(habit_config(grid, kind));
      auto whole = make_seeded(7, make), halves = make_seeded(7, make),
           fresh = make_seeded(9, make);
      run(whole, initialize(whole, config, how), 0, 4);
      const ParallelModel first = initialize(halves, config, how);
      run(halves, first, 0, 2);
      first.save_parallelized((folder.path() / "middle").string());
      const ParallelModel second = initialize(fresh, config, how);
      second.from_parallelized((folder.path() / "middle").string());
      run(fresh, second, 2, 4);
      const auto parameters = fresh->named_parameters();
      for (const auto& item : whole->named_parameters()) {
        EXPECT_TRUE(torch::equal(full_tensor(parameters[item.key()]), full_tensor(item.value())))
            << item.key();
      }
    });
  }
}

/// Counters, annealing by calls, outputs that are collected: the program's own, which nobody puts
/// back.
TEST(PipelineTraining, TheFunctionIsCalledOnceAMicroBatchWhereAnExampleWasGiven) {
  constexpr int kMicroBatches = 4;
  for (const std::string& kind : pipeline::schedule_kinds()) {
    SCOPED_TRACE(kind);
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      HabitNet net = make_seeded(7, [] { return HabitNet(); });
      make_double(*net);
      int calls = 0;
      const auto loss = [&](const Tensors& micro) {
        ++calls;
        // One that counts what it computes, and looks at it.
        const Tensor found = deep(*net, micro);
        EXPECT_GT(found.item<double>(), -1 + 0 * net->norm(micro[0]).numel());
        return found;
      };
      InitializeOptions how;
      how.world = world;
      how.example_inputs = [&] { loss(batch_of(0)); };
      const ParallelModel parallel =
          initialize(net, Config::parse(habit_config({1, 1, 2}, kind)), how);
      PipelineSchedule schedule(parallel,
                                PipelineOptions().num_microbatches(kMicroBatches).kind(kind));
      for (const bool forward_only : {false, true, false}) {
        calls = 0;
        schedule.forward_backward_step(batch_of(1), loss, StepOptions().forward_only(forward_only));
        EXPECT_EQ(calls, kMicroBatches);
      }
    });
  }
}

}  // namespace
}  // namespace oslo::test
