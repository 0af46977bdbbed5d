#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/pipeline_habits_test/habit_net.h"

// A training program around the steps of a schedule, against the same program on one device.
namespace oslo::test {

using pipeline_parity::divided;
using pipeline_parity::make_double;
using torch::optim::Optimizer;

/// A step's forward and backward passes, or the forward passes alone; the loss.
using Step = std::function<double(const Tensors& batch, bool forward_only)>;

struct TrainingProgram {
  std::function<std::unique_ptr<Optimizer>(HabitNet&)> optimizer;
  bool optimizer_after = false;  ///< made after initialize
  std::function<void(HabitNet&, Optimizer&, const Step&)> train;
  Habit loss = {};
  std::function<void(HabitNetImpl&)> prepare = {};
  torch::Dtype dtype = torch::kDouble;
  parity::Tolerance tolerance = {1e-9, 1e-9}, weights = {1e-6, 1e-7};
};

inline Tensor deep(HabitNetImpl& net, const Tensors& micro) {
  Tensor h = micro[0] + net.table(micro[2]).mean(1);
  for (int i = 0; i < kLayers; ++i) h = torch::tanh(net.layer(i, h));
  return torch::mse_loss(h, micro[1]);
}

/// By a generator of its own: ranks that are threads share the default one, from which steps of
/// several stages a rank draw as well.
inline Tensors batch_of(int seed, int64_t rows = 8) {
  return habit_batch(rows, at::detail::createCPUGenerator(seed));
}

/// Both sides take micro-batches one after the other.
inline void expect_program(const TrainingProgram& program, const Grid& grid, const char* kind,
                           int micro_batches) {
  SCOPED_TRACE(grid.name() + " " + kind);
  const Habit loss = program.loss ? program.loss : Habit(deep);
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    const auto make = [&] {
      HabitNet net;
      if (program.prepare) program.prepare(*net);
      return net;
    };
    auto reference = make_seeded(7, make), net = make_seeded(7, make);
    if (program.dtype == torch::kDouble) {
      make_double(*reference);
      make_double(*net);
    }
    const auto reference_optimizer = program.optimizer(reference);
    std::vector<double> expected, actual;
    program.train(reference, *reference_optimizer, [&](const Tensors& batch, bool forward_only) {
      const torch::AutoGradMode records(!forward_only);
      double sum = 0;
      for (const Tensors& micro : divided(batch, micro_batches * grid.data)) {
        const auto weight =
            static_cast<double>(micro[0].size(0)) / static_cast<double>(batch[0].size(0));
        const Tensor own = loss(*reference, micro) * weight;
        if (!forward_only) own.backward();
        sum += own.item<double>();
      }
      expected.push_back(sum);
      return sum;
    });
    auto optimizer = program.optimizer_after ? nullptr : program.optimizer(net);
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { loss(*net, batch_of(0)); };
    const ParallelModel parallel = initialize(net, Config::parse(habit_config(grid, kind)), how);
    if (program.optimizer_after) optimizer = program.optimizer(net);
    PipelineSchedule schedule(parallel,
                              PipelineOptions().num_microbatches(micro_batches).kind(kind));
    program.train(net, *optimizer, [&](const Tensors& batch, bool forward_only) {
      Tensors own;
      for (const Tensor& tensor : batch) {
        own.push_back(tensor.tensor_split(grid.data)[parallel.mpu().get_data_parallel_rank()]);
      }
      const auto result = schedule.forward_backward_step(
          own, [&](const Tensors& micro) { return loss(*net, micro); },
          StepOptions().forward_only(forward_only));
      actual.push_back(result.loss.item<double>());
      return actual.back();
    });
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; grid.data == 1 && i < expected.size(); ++i) {
      EXPECT_NEAR(actual[i], expected[i], program.tolerance.absolute) << "step " << i;
    }
    parity::for_each_parameter(
        *net, *reference, [&](const std::string& name, const Tensor& mine, const Tensor& theirs) {
          if (is_here(mine)) {
            ASSERT_EQ(mine.grad().defined(), theirs.grad().defined()) << name;
          }
          if (is_here(mine) && mine.grad().defined()) {
            const Tensor gradient =
                theirs.grad().is_sparse() ? theirs.grad().to_dense() : theirs.grad();
            const Tensor own = mine.grad().is_sparse() ? mine.grad().to_dense()
                                                       : pipeline_parity::whole_here(mine.grad());
            // Gradients of half parameters are in fp32.
            parity::expect_close(own, gradient.to(own.scalar_type()), "gradient of " + name,
                                 program.tolerance);
          }
        });
    parity::expect_weights(*net, *reference, program.weights);
  });
}

inline void expect_program_everywhere(const TrainingProgram& program) {
  const std::vector<HabitRun> runs{{{1, 1, 2}, "1f1b"},        {{1, 1, 4}, "gpipe"},
                                   {{1, 2, 2}, "1f1b"},        {{2, 1, 2}, "1f1b"},
                                   {{1, 1, 4}, "zero_bubble"}, {{1, 2, 2}, "interleaved"},
                                   {{2, 1, 2}, "zbv"},         {{1, 1, 2}, "dualpipev"}};
  for (const HabitRun& run : runs) {
    expect_program(program, run.grid, run.kind, run.kind == std::string("dualpipev") ? 4 : 2);
  }
}

inline std::unique_ptr<Optimizer> momentum(HabitNet& net) {
  return std::make_unique<torch::optim::SGD>(
      net->parameters(),
      torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
}

inline void some_steps(HabitNet&, Optimizer& optimizer, const Step& step) {
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    step(batch_of(i), false);
    optimizer.step();
  }
}

}  // namespace oslo::test
