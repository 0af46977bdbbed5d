// "kernel_fusion" beside "activation_checkpoint": what runs again runs by the kernels that forward
// ran it by, also where these round otherwise than LibTorch's operators.
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/kernel_fusion_test/counted.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"
#include "tests/support/pipeline_parity.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using torch::Tensor;

constexpr int kCutOver = 2, kUpdates = 3, kSummed = 2;

Mlp double_mlp() {
  Mlp model = make_seeded(7, [] { return Mlp(); });
  model->to(torch::kDouble);
  return model;
}

Tensor input_of(int number) {
  return make_seeded(100 + number, [] { return torch::randn({3, 5, 6}, torch::kDouble); });
}

std::string with_segments(std::string config, const std::string& segments) {
  if (segments.empty()) return config;
  config.pop_back();
  return config + R"(, "activation_checkpoint": {"enabled": true)" + segments + "}}";
}

/// Gradients of all batches, then the weights.
std::vector<Tensor> trained(Mlp model, const std::function<Tensor(Mlp&, const Tensor&)>& forward) {
  torch::optim::AdamW optimizer(model->parameters());
  std::vector<Tensor> numbers;
  const auto note = [&](const Tensor& tensor) {
    numbers.push_back(local_tensor(tensor).detach().clone());
  };
  for (int step = 0; step < kUpdates; ++step) {
    optimizer.zero_grad();
    for (int i = 0; i < kSummed; ++i) {
      forward(model, input_of(step * kSummed + i)).square().mean().backward();
      for (const Tensor& parameter : model->parameters()) note(parameter.grad());
    }
    optimizer.step();
  }
  for (const Tensor& parameter : model->parameters()) note(parameter);
  return numbers;
}

Tensor as_written(Mlp& model, const Tensor& x) {
  return model->forward(x);
}

/// With recomputation and without, the same kernels: the same numbers, bit for bit.
void expect_as_without(const std::string& segments, int again,
                       const std::function<Tensor(Mlp&, const Tensor&)>& forward = as_written) {
  SCOPED_TRACE(segments);
  std::vector<std::vector<Tensor>> expected(kCutOver);
  for (const bool recomputed : {false, true}) {
    kernel_calls().clear();
    kernel_calls().rounding = 1e-12;
    run_as_threads(kCutOver, [&](World world) {
      at::set_num_threads(1);
      Mlp model = double_mlp();
      const auto parallel =
          initialize(model,
                     Config::parse(with_segments(fused_config(kCutOver),
                                                 recomputed ? segments : std::string())),
                     in(world));
      const std::vector<Tensor> numbers = trained(model, recomputed ? forward : as_written);
      if (!recomputed) {
        expected[world.rank()] = numbers;
        return;
      }
      for (const auto& each : parallel.plan().recomputed) {
        EXPECT_EQ(each.not_cut, "") << each.layers;
      }
      ASSERT_EQ(numbers.size(), expected[world.rank()].size());
      for (size_t i = 0; i < numbers.size(); ++i) {
        EXPECT_TRUE(numbers[i].equal(expected[world.rank()][i])) << i;
      }
    });
    // The first forward shows where a GeLU follows, and what runs again of it knows of none.
    const int forwards = kUpdates * kSummed - 1;
    EXPECT_EQ(kernel_calls().gelu, kCutOver * forwards * (kGelus + (recomputed ? again : 0)));
    EXPECT_EQ(kernel_calls().gelu_backward, kCutOver * forwards * kGelus);
    EXPECT_EQ(kernel_calls().adds, kCutOver * kUpdates * (kSummed - 1) * kLayers);
  }
}

TEST(FusedAgain, ByTheKernelsOfForward) {
  expect_as_without(R"(, "every": 1)", kGelus);
  expect_as_without(R"(, "every": 2)", kGelus);
  expect_as_without(R"(, "every": 3)", kGelus);
  expect_as_without(R"(, "modules": ["up_one", "down_two", "up_four"])", 2);
}

TEST(FusedAgain, ByHand) {
  const auto rest = [](Mlp& model, Tensor x) {
    x = x + model->down_two(gelu_tanh(model->up_two(x.flatten(0, 1)))).view_as(x);
    x = x + model->down_three(torch::gelu(model->up_three(x)));
    return x + on_rows(model->down_four, gelu_tanh(on_rows(model->up_four, x)));
  };
  // Nothing of the segment has saved the sum.
  expect_as_without("", 0, [&](Mlp& model, const Tensor& x) {
    const auto up = [model](const Tensor& in) { return linear(model->up_one, in); };
    return rest(model, x + linear(model->down_one, gelu_tanh(checkpoint(up, x))));
  });
  expect_as_without("", 1, [&](Mlp& model, const Tensor& x) {
    const auto both = [model](const Tensor& in) { return gelu_tanh(linear(model->up_one, in)); };
    return rest(model, x + linear(model->down_one, checkpoint(both, x)));
  });
}

/// What is kept of a product is its sum; a GeLU that runs again without it takes nothing of it.
TEST(FusedAgain, AGeluWithoutItsProductIsLibTorchs) {
  using Forward = std::function<Tensor(Mlp&, const Tensor&)>;
  const Forward gelu_alone = [](Mlp& model, const Tensor& x) {
    const Tensor sum = linear(model->up_one, x);
    return linear(model->down_one, checkpoint(gelu_tanh, sum));
  };
  const Forward sum_kept = [](Mlp& model, const Tensor& x) {
    const auto both = [model](const Tensor& in) { return gelu_tanh(linear(model->up_one, in)); };
    return linear(model->down_one, checkpoint(CheckpointOptions().keep({"matmul"}), both, x));
  };
  for (const Forward& forward : {gelu_alone, sum_kept}) {
    kernel_calls().clear();
    kernel_calls().rounding = 1;  // which would show
    run_as_threads(kCutOver, [&](World world) {
      at::set_num_threads(1);
      Mlp plain = double_mlp(), model = double_mlp();
      initialize(model, Config::parse(fused_config(kCutOver)), in(world));
      for (int i = 0; i < 3; ++i) {
        forward(model, input_of(i)).square().mean().backward();
        forward(plain, input_of(i)).square().mean().backward();
        parity::expect_gradients(*model, *plain);
      }
    });
  }
}

/// In segments as the config finds them.
TEST(FusedAgain, WithProductsThatAreKept) {
  kernel_calls().clear();
  kernel_calls().rounding = 1;
  run_as_threads(kCutOver, [&](World world) {
    at::set_num_threads(1);
    Mlp plain = double_mlp(), model = double_mlp();
    initialize(model,
               Config::parse(with_segments(fused_config(kCutOver), R"(, "keep": ["matmul"])")),
               in(world));
    for (int i = 0; i < 3; ++i) {
      model->forward(input_of(i)).square().mean().backward();
      plain->forward(input_of(i)).square().mean().backward();
      parity::expect_gradients(*model, *plain);
    }
  });
  EXPECT_EQ(kernel_calls().gelu, 0);
  EXPECT_GT(kernel_calls().adds, 0);
}

TEST(FusedAgain, OverStages) {
  for (const char* kind : {"1f1b", "zero_bubble"}) {
    SCOPED_TRACE(kind);
    kernel_calls().clear();
    pipeline_parity::Trial trial;
    trial.kind = kind;
    trial.grid = {1, 1, 2};
    trial.steps = 2;
    trial.config = R"({"kernel_fusion": true, "model_parallelism": {"pipeline_parallel_size": 2},
        "activation_checkpoint": {"enabled": true, "every": 2},
        "stages": {"up_one": 0, "down_one": 0, "up_two": 0, "down_two": 1, "up_three": 1,
                   "down_three": 1, "up_four": 1, "down_four": 1}})";
    pipeline_parity::expect_parity(
        trial, [] { return Mlp(); },
        [](int) {
          return std::vector<Tensor>{torch::randn({4, 5, 6}, torch::kDouble)};
        },
        [](Mlp& model, const auto& micro) { return model->forward(micro[0]).square().mean(); });
    const int forwards = trial.steps * trial.micro_batches - 1;
    EXPECT_EQ(kernel_calls().gelu, 2 * forwards * kGelus);
    EXPECT_EQ(kernel_calls().gelu_backward, forwards * (kGelus - 1));
  }
}

}  // namespace
}  // namespace oslo::test
