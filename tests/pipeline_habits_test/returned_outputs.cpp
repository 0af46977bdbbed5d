// What a step hands back of its outputs.
#include <gtest/gtest.h>

#include "tests/pipeline_habits_test/training_program.h"

namespace oslo::test {
namespace {

/// Every other forward looks at a value of the last stage, and so ends behind the next one's, where
/// the rank of its output has several stages.
TEST(PipelineOutputs, ComeInTheOrderOfTheMicroBatches) {
  for (const std::string& kind : pipeline::schedule_kinds()) {
    SCOPED_TRACE(kind);
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      HabitNet net = make_seeded(7, [] { return HabitNet(); }),
               plain = make_seeded(7, [] { return HabitNet(); });
      make_double(*net);
      make_double(*plain);
      Tensors batch = batch_of(3);
      for (int row = 0; row < 8; ++row) batch[2][row].fill_(row / 2 % 2);
      const auto forward = [](HabitNet& of, const Tensors& micro) {
        const Tensor h = of->layer(1, of->layer(0, micro[0]));
        const Tensor y = of->layer(3, of->layer(2, h));
        const bool looks = micro[2][0][0].item<int64_t>() == 0;
        return looks && y.sum().item<double>() > 1e9 ? h * 2 : h;
      };
      const Tensor expected = forward(plain, batch).detach();
      InitializeOptions how;
      how.world = world;
      const auto config = Config::parse(habit_config({1, 1, 2}, kind));
      const ParallelModel parallel = initialize(net, config, how);
      PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4));
      for (const bool forward_only : {true, false}) {
        const StepResult step = schedule.forward_backward_step(
            batch, [&](const Tensors& micro) { return forward(net, micro); },
            [](const Tensor& output, const Tensors& micro) {
              return torch::mse_loss(output, micro[1]);
            },
            StepOptions().forward_only(forward_only).return_outputs(true));
        if (!step.outputs.defined()) continue;
        parity::expect_close(step.outputs, expected, "outputs");
      }
    });
  }
}

}  // namespace
}  // namespace oslo::test
