// Evaluations by a schedule, and bare forwards, between steps that train.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/pipeline_step_test/eight_layers.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline_parity::Tensors;
using torch::Tensor;
namespace F = torch::nn::functional;

class Evaluations : public testing::TestWithParam<std::string> {};

TEST_P(Evaluations, LeaveGradientsAloneAndShowOutputs) {
  run_as_threads(2, [kind = GetParam()](World world) {
    const auto make = [] {
      auto model = eight_layers();
      model->to(torch::kDouble);
      return model;
    };
    auto reference = make_seeded(7, make), model = make_seeded(7, make);
    const Tensors batch = make_seeded(1, [] { return rows(7); });
    InitializeOptions how;
    how.world = world;
    const ParallelModel parallel =
        initialize(model, Config::parse(pipeline_parity::config_of({1, 1, 2}, kind)), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4));
    {
      const torch::NoGradGuard no_grad;  // a bare forward, which every rank calls
      EXPECT_TRUE(
          torch::allclose(full_tensor(model->forward(batch[0])), reference->forward(batch[0])));
    }
    const auto& list = schedule.schedule();
    const int last = list.rank_of_stage.back();
    const auto forward = [&](const Tensors& micro) { return model->forward(micro[0]); };
    const auto criterion = [](const Tensor& output, const Tensors& micro) {
      return F::mse_loss(output, micro[1]);
    };
    const Tensor output = reference->forward(batch[0]);
    const double expected = F::mse_loss(output, batch[1]).item<double>();
    const auto step = [&](bool forward_only) {
      return schedule.forward_backward_step(
          batch, forward, criterion, StepOptions().forward_only(forward_only).return_outputs(true));
    };
    const StepResult evaluated = step(true);
    EXPECT_NEAR(evaluated.loss.item<double>(), expected, 1e-12);
    for (const Tensor& parameter : model->parameters()) EXPECT_FALSE(parameter.grad().defined());
    EXPECT_EQ(evaluated.outputs.defined(), world.rank() == last);
    EXPECT_EQ(evaluated.labels.defined(), world.rank() == last);
    EXPECT_EQ(evaluated.peak_in_flight, 1);
    const StepResult trained = step(false);
    EXPECT_NEAR(trained.loss.item<double>(), expected, 1e-12);
    if (world.rank() == last) {
      EXPECT_TRUE(torch::allclose(evaluated.outputs, output.detach()));
      EXPECT_TRUE(torch::allclose(trained.outputs, output.detach()));
      EXPECT_TRUE(torch::equal(trained.labels, batch[1]));
    }
    // A second step adds to the gradients, as backward() does.
    const std::vector<Tensor> parameters = model->parameters();
    const Tensor own = *std::find_if(parameters.begin(), parameters.end(), is_here);
    const Tensor once = local_tensor(own.grad()).clone();
    step(true);
    EXPECT_TRUE(torch::equal(local_tensor(own.grad()), once));
    step(false);
    EXPECT_TRUE(torch::allclose(local_tensor(own.grad()), 2 * once));
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, Evaluations, testing::ValuesIn(pipeline::schedule_kinds()),
                         [](const auto& info) { return "of_" + info.param; });

}  // namespace
}  // namespace oslo::test
