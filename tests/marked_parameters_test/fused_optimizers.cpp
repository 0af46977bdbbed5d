// An optimizer's step in one operator, as LibTorch has it for fused=True in Python: on parts.
#include <gmock/gmock.h>

#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<Tensor>;

struct Fused {
  const char* name;
  int states;
  void (*step)(const Tensors& p, const Tensors& g, const std::vector<Tensors>& s,
               const Tensors& steps);
};

const std::vector<Fused> kFused = {
    {"adamw", 2,
     [](const Tensors& p, const Tensors& g, const std::vector<Tensors>& s, const Tensors& n) {
       at::_fused_adamw_(p, g, s[0], s[1], {}, n, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
     }},
    {"adamw, amsgrad, a rate on a tensor", 3,
     [](const Tensors& p, const Tensors& g, const std::vector<Tensors>& s, const Tensors& n) {
       at::_fused_adamw_(p, g, s[0], s[1], s[2], n, torch::tensor(0.1), 0.9, 0.99, 0.01, 1e-8, true,
                         true);
     }},
    {"adam", 2,
     [](const Tensors& p, const Tensors& g, const std::vector<Tensors>& s, const Tensors& n) {
       at::_fused_adam_(p, g, s[0], s[1], {}, n, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
     }},
    {"sgd", 1,
     [](const Tensors& p, const Tensors& g, const std::vector<Tensors>& s, const Tensors&) {
       at::_fused_sgd_(p, g, s[0], 0.01, 0.9, 0.1, 0, true, false, false);
     }},
    {"adagrad", 1,
     [](const Tensors& p, const Tensors& g, const std::vector<Tensors>& s, const Tensors& n) {
       at::_fused_adagrad_(p, g, s[0], n, 0.1, 0.01, 0.01, 1e-8, false);
     }},
};

void train(const Fused& fused, const Tensors& parameters) {
  std::vector<Tensors> states(fused.states);
  Tensors steps;
  for (const Tensor& p : parameters) {
    for (Tensors& each : states) each.push_back(torch::zeros_like(p));
    steps.push_back(torch::zeros({}));
  }
  for (int step = 0; step < 3; ++step) {
    Tensor loss = torch::zeros({}, torch::kDouble);
    for (const Tensor& p : parameters) {
      p.mutable_grad().reset();
      loss = loss + (p.sin() * (step + 1)).pow(2).sum();
    }
    full_tensor(loss).backward();
    const torch::NoGradGuard no_grad;
    Tensors gradients;
    for (const Tensor& p : parameters) gradients.push_back(p.grad());
    for (const Tensor& n : steps) n.add_(1);
    fused.step(parameters, gradients, states, steps);
  }
}

TEST(FusedOptimizers, StepPartsAsOneDeviceStepsTheWhole) {
  for (const Fused& fused : kFused) {
    Tensors expected{leaf(numbers({5, 3})), leaf(numbers({7}, 1)), leaf(numbers({4, 5}, 2))};
    train(fused, expected);
    on_ranks(3, [&](const MPU& mpu) {
      Tensors mine{marked(numbers({5, 3}), mpu, 0), leaf(numbers({7}, 1)),
                   marked(numbers({4, 5}, 2), mpu, 1)};
      const int64_t before = all_reduces(mpu);
      train(fused, mine);
      for (size_t i = 0; i < mine.size(); ++i) {
        expect_close(mine[i].detach(), expected[i].detach(), c10::str(fused.name, ", ", i));
      }
      EXPECT_EQ(all_reduces(mpu) - before, 6) << "two sums of three losses, and none of a step";
    });
  }
}

/// A state of the whole parameter's sizes, on every rank.
TEST(FusedOptimizers, AStateThatIsWholeIsRefused) {
  on_ranks(2, [](const MPU& mpu) {
    const torch::NoGradGuard no_grad;
    const Tensor p = marked(numbers({6, 3}), mpu, 0), whole = torch::zeros({6, 3}, torch::kDouble);
    const std::string error = error_of([&] {
      at::_fused_sgd_({p}, {torch::ones_like(p)}, {whole}, 0, 0.9, 0.1, 0, false, false, false);
    });
    EXPECT_THAT(error, AllOf(HasSubstr("aten::_fused_sgd_"), HasSubstr("momentum_buffer_list"),
                             HasSubstr("[6, 3]"), HasSubstr("torch::zeros_like(p)")));
  });
}

}  // namespace
}  // namespace oslo
