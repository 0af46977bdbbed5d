// Optimizers beside pipeline stages: their groups, rates, frozen layers and kinds of gradients.
#include <gtest/gtest.h>

#include "tests/pipeline_habits_test/training_program.h"

namespace oslo::test {
namespace {

using torch::optim::OptimizerParamGroup;

/// With weight decay for matrices alone, and a rate of its own for the table.
std::unique_ptr<Optimizer> in_groups(HabitNet& net) {
  std::vector<Tensor> decays, stays;
  for (const Tensor& parameter : net->parameters()) {
    (parameter.dim() > 1 ? decays : stays).push_back(parameter);
  }
  const auto options = [](double rate, double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(rate).weight_decay(decay));
  };
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(decays, options(1e-2, 0.1));
  groups.emplace_back(stays, options(3e-3, 0));
  return std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(1e-3));
}

TEST(PipelineOptimizers, GroupsOfParametersAndSchedulesOfRates) {
  for (const bool after : {false, true}) {
    expect_program_everywhere(
        {in_groups, after, [](HabitNet&, Optimizer& optimizer, const Step& step) {
           torch::optim::StepLR rate(optimizer, 1, 0.5);
           for (int i = 0; i < 4; ++i) {
             optimizer.zero_grad();
             step(batch_of(i), false);
             optimizer.step();
             rate.step();
           }
         }});
  }
}

TEST(PipelineOptimizers, OtherOptimizers) {
  using Make = std::function<std::unique_ptr<Optimizer>(HabitNet&)>;
  const std::vector<Make> optimizers{
      momentum,
      [](HabitNet& net) {
        return std::make_unique<torch::optim::Adam>(
            net->parameters(), torch::optim::AdamOptions(1e-2).amsgrad(true).weight_decay(0.01));
      },
      [](HabitNet& net) {
        return std::make_unique<torch::optim::RMSprop>(
            net->parameters(), torch::optim::RMSpropOptions(1e-3).centered(true).momentum(0.5));
      },
      [](HabitNet& net) {
        return std::make_unique<torch::optim::Adagrad>(net->parameters(),
                                                       torch::optim::AdagradOptions(1e-2));
      }};
  for (const Make& make : optimizers) {
    expect_program({make, false, some_steps}, {1, 2, 2}, "1f1b", 2);
    expect_program({make, true, some_steps}, {1, 1, 4}, "gpipe", 2);
    expect_program({make, false, some_steps}, {1, 1, 2}, "zbv", 4);
  }
}

TEST(PipelineOptimizers, ClippingByValue) {
  expect_program_everywhere(
      {momentum, false, [](HabitNet& net, Optimizer& optimizer, const Step& step) {
         for (int i = 0; i < 3; ++i) {
           optimizer.zero_grad();
           step(batch_of(i), false);
           torch::nn::utils::clip_grad_value_(net->parameters(), 1e-2);
           optimizer.step();
         }
       }});
}

TEST(PipelineOptimizers, LayersThatAreFrozenAndThawedOnTheWay) {
  expect_program_everywhere(
      {momentum, false, [](HabitNet& net, Optimizer& optimizer, const Step& step) {
         for (int i = 0; i < kLayers; ++i) {
           net->zero_grad();
           for (Tensor& each : net->layers[i]->parameters()) {
             each.requires_grad_(false);
           }
           step(batch_of(i), false);
           optimizer.step();
           for (Tensor& each : net->layers[i]->parameters()) {
             each.requires_grad_(true);
           }
         }
       }});
}

/// On one stage, and on two, where another use gives it a dense gradient.
TEST(PipelineOptimizers, TablesWithSparseGradients) {
  for (const bool twice : {false, true}) {
    TrainingProgram program{[](HabitNet& net) {
                              return std::make_unique<torch::optim::SGD>(
                                  net->parameters(), torch::optim::SGDOptions(0.1));
                            },
                            false, some_steps};
    program.prepare = [](HabitNetImpl& net) { net.table->options.sparse(true); };
    program.loss = [twice](HabitNetImpl& net, const Tensors& micro) {
      const Tensor loss = deep(net, micro);
      if (!twice) return loss;
      const Tensor h = net.layer(3, micro[0]);
      return loss + torch::matmul(h, net.table->weight.t()).pow(2).mean() +
             net.layer(3, net.table(micro[2]).mean(1)).pow(2).mean();
    };
    expect_program(program, {1, 1, 2}, "1f1b", 2);
    expect_program(program, {1, 1, 4}, "gpipe", 2);
    expect_program(program, {2, 1, 2}, "1f1b", 2);
    expect_program(program, {1, 1, 4}, "zero_bubble", 2);
    expect_program(program, {2, 1, 2}, "zbv", 2);
  }
}

}  // namespace
}  // namespace oslo::test
