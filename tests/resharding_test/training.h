#pragma once

#include <oslo_cpp/oslo.h>

#include <vector>

#include "tests/resharding_test/resharding_layouts.h"

namespace oslo::resharding_test {

inline torch::Tensor tokens() {
  return torch::arange(6 * 9).mul(7).remainder(53).view({6, 9});
}

inline torch::Tensor loss_of(Gpt2& model, const torch::Tensor& batch) {
  return torch::cross_entropy_loss(model->forward(batch).view({-1, 53}), batch.flatten());
}

/// Forward and backward on all of the batch, whatever the layout.
inline void backward(const ParallelModel& parallel, Gpt2& model) {
  PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(1));
  schedule.forward_backward_step({tokens()}, [&](const std::vector<torch::Tensor>& micro) {
    return loss_of(model, micro[0]);
  });
}

inline void step_plainly(Gpt2& model, torch::optim::Optimizer& optimizer) {
  loss_of(model, tokens()).backward();
  optimizer.step();
}

inline void train(const ParallelModel& parallel, Gpt2& model, torch::optim::Optimizer& optimizer,
                  int steps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    backward(parallel, model);
    optimizer.step();
  }
}

/// In double, with a frozen parameter.
inline Gpt2 make_double() {
  Gpt2 model = make_gpt2(1);
  model->to(torch::kDouble);
  model->transformer->wpe->weight.set_requires_grad(false);
  return model;
}

}  // namespace oslo::resharding_test
