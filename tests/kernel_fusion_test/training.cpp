// Training with "kernel_fusion" against plain LibTorch: outputs, every gradient, weights after
// steps, and which kernels ran.
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include "tests/kernel_fusion_test/counted.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"
#include "tests/support/pipeline_parity.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using torch::Tensor;

Mlp make_mlp() {
  return Mlp();
}

Tensor batch(int number) {
  return make_seeded(100 + number, [] { return torch::randn({3, 5, 6}, torch::kDouble); });
}

void give_gradients(Mlp& model, int number) {
  model->forward(batch(number)).square().mean().backward();
}

constexpr int kRanks = 2, kSteps = 3, kBatches = 2;

/// Gradients of several batches add up in a step, where nobody is told of them.
void train(bool fusion) {
  run_as_threads(kRanks, [&](World world) {
    at::set_num_threads(1);
    auto plain = make_seeded(7, make_mlp), model = make_seeded(7, make_mlp);
    plain->to(torch::kDouble);
    model->to(torch::kDouble);
    torch::optim::AdamW optimizer(model->parameters()), reference(plain->parameters());
    initialize(model, Config::parse(fused_config(kRanks, fusion)), in(world));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      reference.zero_grad();
      for (int i = 0; i < kBatches; ++i) {
        const int number = step * kBatches + i;
        {
          const torch::NoGradGuard guard;
          parity::expect_close(model->forward(batch(number)), plain->forward(batch(number)),
                               "output");
        }
        give_gradients(model, number);
        give_gradients(plain, number);
        parity::expect_gradients(*model, *plain);
      }
      optimizer.step();
      reference.step();
      parity::expect_weights(*model, *plain);
    }
  });
}

TEST(KernelFusion, TrainsAsPlainLibTorchDoes) {
  kernel_calls().clear();
  train(true);
  // Three layers have a GeLU that a kernel computes; the first forward shows which.
  const int forwards = kSteps * kBatches * 2 - 1;
  EXPECT_EQ(kernel_calls().gelu, kRanks * forwards * kGelus);
  EXPECT_EQ(kernel_calls().gelu_backward, kRanks * kSteps * kBatches * kGelus);
  // The first batch of a step finds no gradients.
  EXPECT_EQ(kernel_calls().overwrites, kRanks * kSteps * kLayers);
  EXPECT_EQ(kernel_calls().adds, kRanks * kSteps * (kBatches - 1) * kLayers);
}

TEST(KernelFusion, RunsNoKernelUnlessItIsAskedFor) {
  kernel_calls().clear();
  train(false);
  EXPECT_EQ(kernel_calls().gelu + kernel_calls().gelu_backward, 0);
  EXPECT_EQ(kernel_calls().overwrites + kernel_calls().adds, 0);
}

/// The reducer of data parallelism waits at the accumulators: nothing is added past it.
TEST(KernelFusion, GivesGradientsToTheReducer) {
  kernel_calls().clear();
  parity::Setup setup;
  setup.world = 4;
  setup.config = fused_config(2);
  parity::expect_parity(
      setup, make_mlp,
      [](int) {
        return parity::Batch{torch::randn({4, 5, 6}, torch::kDouble), torch::zeros({4})};
      },
      [](const Tensor& output, const Tensor&) { return output.square().mean(); });
  EXPECT_GT(kernel_calls().overwrites, 0);
  EXPECT_EQ(kernel_calls().adds, 0);
}

/// A schedule lets gradients of micro-batches add up: all but the first in place, also where the
/// products of weights run in a part of their own.
TEST(KernelFusion, AddsUpTheGradientsOfMicroBatches) {
  for (const char* kind : {"1f1b", "zero_bubble"}) {
    kernel_calls().clear();
    pipeline_parity::Trial trial;
    trial.kind = kind;
    trial.grid = {1, 1, 2};
    trial.steps = 2;
    trial.config = R"({"kernel_fusion": true, "model_parallelism": {"pipeline_parallel_size": 2},
        "stages": {"up_one": 0, "down_one": 0, "up_two": 0, "down_two": 1, "up_three": 1,
                   "down_three": 1, "up_four": 1, "down_four": 1}})";
    pipeline_parity::expect_parity(
        trial, make_mlp,
        [](int) {
          return std::vector<Tensor>{torch::randn({4, 5, 6}, torch::kDouble)};
        },
        [](Mlp& model, const auto& micro) { return model->forward(micro[0]).square().mean(); });
    EXPECT_EQ(kernel_calls().overwrites, trial.steps * kLayers) << kind;
    EXPECT_EQ(kernel_calls().adds, trial.steps * (trial.micro_batches - 1) * kLayers) << kind;
    // The first forward shows where a GeLU follows. One of them goes on to the other stage.
    const int forwards = trial.steps * trial.micro_batches - 1;
    EXPECT_EQ(kernel_calls().gelu, forwards * kGelus) << kind;
    EXPECT_EQ(kernel_calls().gelu_backward, forwards * (kGelus - 1)) << kind;
  }
}

}  // namespace
}  // namespace oslo::test
