// Operators that write to out=, and a user's autograd::Function that begins a stage.
#include "tests/pipeline_habits_test/habit_net.h"

namespace oslo::test {
namespace {

HabitTrial on_few() {
  HabitTrial how;
  how.runs = {{{1, 1, 2}, "1f1b"}, {{1, 2, 2}, "gpipe"}, {{1, 1, 2}, "zbv"}};
  return how;
}

/// As torch.nn.utils.spectral_norm is written in C++: `normalize` takes out=, and divides with it.
TEST(PipelineWrittenOut, ASpectralNorm) {
  namespace F = torch::nn::functional;
  expect_habit(
      [](HabitNetImpl& net, const Tensors& micro) {
        const Tensor h = net.layer(0, micro[0]), weight = net.layers[3]->weight;
        Tensor u = torch::ones({kWide}, h.options()), v = torch::ones({kWide}, h.options());
        const auto into = [](Tensor& out) {
          return F::NormalizeFuncOptions().dim(0).eps(1e-12).out(out);
        };
        {
          const torch::NoGradGuard no_grad;
          for (int turn = 0; turn < 2; ++turn) {
            v = F::normalize(torch::mv(weight.t(), u), into(v));
            u = F::normalize(torch::mv(weight, v), into(u));
          }
        }
        const Tensor sigma = torch::dot(u.clone(), torch::mv(weight, v.clone()));
        return error_of_rows(F::linear(h, weight / sigma), micro[1]);
      },
      on_few());
}

/// Empty ones take the result's shape, others are written.
TEST(PipelineWrittenOut, OneTwoAndListsOfOperands) {
  expect_habit(
      [](HabitNetImpl& net, const Tensors& micro) {
        const Tensor h = net.layer(0, micro[0]), y = net.layer(3, h);
        Tensor sum = torch::empty({0}, h.options()), product = torch::empty_like(micro[0]);
        Tensor both = torch::empty({0}, h.options()), rows = torch::empty({0}, h.options());
        Tensor most = torch::empty({0}, h.options()), where = torch::empty({0}, torch::kLong);
        {
          const torch::NoGradGuard no_grad;
          torch::add_out(sum, h, y, 2);
          torch::matmul_out(product, h, net.layers[3]->weight);
          torch::cat_out(both, {h, y}, 1);
          torch::sum_out(rows, sum * product, 1);
          torch::max_out(most, where, h, 1);
        }
        const Tensor scale = rows + most + where;
        return error_of_rows(y * scale.unsqueeze(1) + both.slice(1, 3, 9), micro[1]);
      },
      on_few());
}

struct OwnLinear : torch::autograd::Function<OwnLinear> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const Tensor& weight) {
    const Tensor y = torch::tanh(x.mm(weight.t()));
    context->save_for_backward({x, weight, y});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor inner = gradients[0] * (1 - saved[2].square());
    return {inner.mm(saved[1]), inner.t().mm(saved[0])};
  }
};

/// Its input is of the stage before: where the run on shapes shows it, it runs there.
TEST(PipelineWrittenOut, AFunctionOfTheProgramIsTheFirstOfItsStage) {
  for (const bool example : {true, false}) {
    HabitTrial how = on_few();
    how.example = example;
    expect_habit(
        [](HabitNetImpl& net, const Tensors& micro) {
          Tensor h = net.layer(1, torch::tanh(net.layer(0, micro[0])));
          h = OwnLinear::apply(h, net.layers[2]->weight);
          return error_of_rows(net.layer(3, h), micro[1]);
        },
        how);
  }
}

/// What it is given of a later stage's parameter is a view.
TEST(PipelineWrittenOut, AFunctionOfTheProgramTakesAViewOfALaterStagesParameter) {
  for (const bool example : {true, false}) {
    HabitTrial how = on_few();
    how.example = example;
    expect_habit(
        [](HabitNetImpl& net, const Tensors& micro) {
          Tensor h = torch::tanh(net.layer(0, micro[0]));
          h = OwnLinear::apply(h, net.layers[3]->weight.t());
          return error_of_rows(net.layer(3, h), micro[1]);
        },
        how);
  }
}

/// Terms over all parameters, in one tensor, before the forward: a V-shaped schedule refuses them
/// by name, as its first rank would wait for the last stage before its first.
TEST(PipelineWrittenOut, NormsOfAllParametersAreStackedBeforeTheForward) {
  HabitTrial how;
  how.runs = {
      {{1, 1, 2}, "1f1b"}, {{1, 2, 2}, "gpipe"}, {{1, 1, 4}, "zero_bubble"}, {{1, 1, 2}, "zbv"}};
  how.refused_by = {"zbv"};
  expect_habit(
      [](HabitNetImpl& net, const Tensors& micro) {
        Tensors norms;
        for (const Tensor& parameter : net.parameters()) norms.push_back(parameter.norm());
        const Tensor penalty = torch::stack(norms).square().sum();
        Tensor h = micro[0];
        for (int i = 0; i < kLayers; ++i) h = torch::tanh(net.layer(i, h));
        return error_of_rows(h, micro[1]) + 1e-3 * penalty;
      },
      how);
}

}  // namespace
}  // namespace oslo::test
