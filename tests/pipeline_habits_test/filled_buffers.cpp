// Ordinary tensors of a forward into which values of pipeline stages are written, slice by slice
// and as a whole, and views of them; each against one device.
#include <gmock/gmock.h>

#include "tests/pipeline_habits_test/habit_net.h"
#include "tests/support/error_of.h"

namespace oslo::test {
namespace {

using torch::indexing::Slice;

/// As a decoder keeps its outputs, one for each step.
TEST(PipelineFilledBuffers, OutputsOfOneStage) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    Tensor all = torch::zeros({micro[0].size(0), 3, kWide}, micro[0].options());
    Tensor h = micro[0];
    for (int i = 0; i < 3; ++i) {
      h = torch::tanh(net.layer(1, h));
      all.select(1, i).copy_(h);
    }
    return error_of_rows(net.layer(3, all.mean(1)), micro[1]);
  });
}

/// The buffer goes from stage to stage with what it holds.
TEST(PipelineFilledBuffers, OutputsOfAllStages) {
  for (const bool by_index : {false, true}) {
    expect_habit([&](HabitNetImpl& net, const Tensors& micro) {
      Tensor all = torch::zeros({micro[0].size(0), kLayers, kWide}, micro[0].options());
      Tensor h = micro[0];
      for (int i = 0; i < kLayers; ++i) {
        h = torch::tanh(net.layer(i, h));
        if (by_index) {
          all.index_put_({Slice(), i}, h);
        } else {
          all.select(1, i).copy_(h);
        }
      }
      return error_of_rows(all.mean(1), micro[1]);
    });
  }
}

TEST(PipelineFilledBuffers, SlicesThatAddToWhatIsThere) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    Tensor sum = torch::zeros({micro[0].size(0), 2, kWide}, micro[0].options());
    const Tensor left = sum.select(1, 0);  // taken before the stage has it
    left.add_(net.layer(0, micro[0]));
    sum.select(1, 1).add_(net.layer(0, micro[1]).tanh());
    sum.select(1, 0).mul_(net.layers[0]->bias);
    sum.mul_(0.5);
    left.add_(net.layer(0, left.clone()), 0.3);
    return error_of_rows(net.layer(3, sum.sum(1)), micro[1]);
  });
}

/// As matrices of products they are no weights, whose gradients may come later.
TEST(PipelineFilledBuffers, KeysAndValuesOfAnAttention) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = torch::tanh(net.layer(0, micro[0]));
    Tensor keys = torch::zeros_like(micro[0]), values = torch::zeros_like(micro[0]);
    keys.copy_(net.layer(1, h));
    values.narrow(1, 0, 3).copy_(h.narrow(1, 2, 3));
    const Tensor scores = torch::softmax(net.layer(3, h).matmul(keys.t()), -1);
    return error_of_rows(scores.matmul(values), micro[1]);
  });
}

/// The view was taken when there was nothing to give it a gradient.
TEST(PipelineFilledBuffers, AViewFromBeforeAWriteThatIsRecorded) {
  expect_habit([](HabitNetImpl& net, const Tensors& micro) {
    const Tensor h = torch::tanh(net.layer(0, micro[0]));
    Tensor sum = torch::zeros_like(micro[0]);
    sum.copy_(h.detach());
    const Tensor left = sum.narrow(1, 0, 3);
    sum.add_(h);
    const Tensor first = net.layer(3, torch::cat({left, left * 2}, 1));
    sum.mul_(h);
    return error_of_rows(first + net.layer(3, torch::cat({left, left}, 1)), micro[1]);
  });
}

/// The write records no gradient: what has crossed is to cross again nevertheless.
TEST(PipelineFilledBuffers, WhatIsWrittenWithoutAGradientCrossesAgain) {
  for (const bool inference : {false, true}) {
    expect_habit([&](HabitNetImpl& net, const Tensors& micro) {
      const Tensor h = torch::tanh(net.layer(0, micro[0]));
      Tensor product;
      {
        const c10::InferenceMode mode(inference);
        const torch::AutoGradMode records(!inference);
        Tensor sum = torch::zeros_like(micro[0]);
        sum.add_(h.detach());
        const Tensor first = torch::tanh(sum + net.layers[3]->bias.detach());
        sum.mul_(2);
        product = first * torch::tanh(sum - net.layers[3]->bias.detach());
      }
      return error_of_rows(product.clone() * net.layer(3, h), micro[1]);
    });
  }
}

/// What a later stage has written into the whole, a view from before does not see.
TEST(PipelineFilledBuffers, AViewOfWhatHasMovedIsRefusedOnEveryRank) {
  std::vector<std::string> errors(2);
  run_as_threads(2, [&](World world) {
    HabitNet net = make_seeded(7, [] { return HabitNet(); });
    InitializeOptions how;
    how.world = world;
    const ParallelModel parallel = initialize(net, Config::parse(habit_config({1, 1, 2})), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    errors[world.rank()] = error_of([&] {
      schedule.forward_backward_step({torch::ones({4, kWide})}, [&](const Tensors& micro) {
        const Tensor h = net->layer(0, micro[0]);
        Tensor sum = torch::zeros_like(micro[0]);
        const Tensor left = sum.narrow(1, 0, 3);
        left.copy_(h.narrow(1, 0, 3));
        sum += net->layer(3, h);
        return net->layer(3, torch::cat({left, left}, 1)).mean();
      });
    });
  });
  EXPECT_THAT(errors, ::testing::Each(::testing::HasSubstr("elements from before")));
}

/// Not in the first step's run on shapes as well, and not seen by other micro-batches' backward.
TEST(PipelineFilledBuffers, AMicroBatchIsWrittenOnce) {
  for (const char* kind : {"1f1b", "interleaved", "zbv"}) {
    SCOPED_TRACE(kind);
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      HabitNet net = make_seeded(7, [] { return HabitNet(); }),
               plain = make_seeded(7, [] { return HabitNet(); });
      const auto loss = [](HabitNet& of, const Tensor& x) {
        return of->layer(3, torch::tanh(of->layer(0, x.mul_(3)))).pow(2).mean();
      };
      const Tensor x = torch::linspace(-1, 1, 8 * kWide).view({8, kWide});
      const Tensor expected = loss(plain, x.clone());
      InitializeOptions how;
      how.world = world;
      const auto config = Config::parse(habit_config({1, 1, 2}, kind));
      const ParallelModel parallel = initialize(net, config, how);
      PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4));
      const StepResult step = schedule.forward_backward_step(
          {x.clone()}, [&](const Tensors& micro) { return loss(net, micro[0]); });
      EXPECT_NEAR(step.loss.item<double>(), expected.item<double>(), 1e-6);
    });
  }
}

}  // namespace
}  // namespace oslo::test
