// Other types of numbers than doubles over pipeline stages.
#include <gtest/gtest.h>

#include "tests/pipeline_habits_test/training_program.h"
#include "tests/support/bf16.h"

namespace oslo::test {
namespace {

/// A product and the bias beside it are rounded apart or together.
constexpr parity::Tolerance kBfloat16{2e-2, 4e-3};

TEST(PipelineNumberTypes, WeightsInBfloat16) {
  TrainingProgram program{momentum, false, some_steps};
  program.dtype = torch::kBFloat16;
  program.tolerance = program.weights = kBfloat16;
  program.prepare = [](HabitNetImpl& net) { net.to(torch::kBFloat16); };
  program.loss = [](HabitNetImpl& net, const Tensors& micro) {
    return deep(net, {micro[0].to(torch::kBFloat16), micro[1].to(torch::kBFloat16), micro[2]})
        .to(torch::kFloat);
  };
  expect_program(program, {1, 1, 2}, "1f1b", 2);
  expect_program(program, {1, 1, 4}, "gpipe", 4);
  expect_program(program, {1, 1, 4}, "zero_bubble", 4);
  expect_program(program, {1, 1, 2}, "interleaved", 4);
}

TEST(PipelineNumberTypes, Autocast) {
  TrainingProgram program{momentum, false, some_steps};
  program.dtype = torch::kFloat;
  program.tolerance = program.weights = kBfloat16;
  program.loss = [](HabitNetImpl& net, const Tensors& micro) {
    const Tensor x = micro[0].to(torch::kFloat), wanted = micro[1].to(torch::kFloat);
    Tensor y;
    {
      const Autocast on;
      Tensor h = x + net.table(micro[2]).mean(1);
      for (int i = 0; i < kLayers; ++i) h = torch::tanh(net.layer(i, h));
      y = net.layer(0, h);
    }
    return torch::mse_loss(y.to(torch::kFloat), wanted);
  };
  expect_program(program, {1, 1, 2}, "1f1b", 2);
  expect_program(program, {1, 1, 4}, "gpipe", 4);
  expect_program(program, {1, 1, 4}, "zero_bubble", 4);
  expect_program(program, {1, 1, 2}, "interleaved", 4);
}

}  // namespace
}  // namespace oslo::test
