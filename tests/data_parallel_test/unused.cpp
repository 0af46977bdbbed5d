// Heads that a loss leaves out, as docs/bring-your-model.md says it: what each way to train them
// over data ranks comes to, beside one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "mpu/grid/mpu.h"
#include "parallelizers/data/distributed_data_parallel.h"
#include "tests/support/error_of.h"
#include "tests/support/seeded.h"

namespace {

using oslo::DDPOptions;
using torch::Tensor;

/// Classes and boxes of one trunk.
struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() { to(torch::kDouble); }
  std::pair<Tensor, Tensor> forward(const Tensor& x) {
    const Tensor h = torch::relu(trunk->forward(x));
    return {classes->forward(h), boxes->forward(h)};
  }
  torch::nn::Linear trunk{register_module("trunk", torch::nn::Linear(5, 7))};
  torch::nn::Linear classes{register_module("classes", torch::nn::Linear(7, 3))};
  torch::nn::Linear boxes{register_module("boxes", torch::nn::Linear(7, 4))};
};
TORCH_MODULE(TwoHeads);

TwoHeads make() {
  return oslo::test::make_seeded(3, [] { return TwoHeads(); });
}

/// Six rows, of which each of two ranks has three.
Tensor rows(int step) {
  return torch::sin(torch::arange(30, torch::kDouble).view({6, 5}) * (step + 1.0));
}

constexpr int kSteps = 3;

void step_on(TwoHeads& net, const std::function<Tensor(const Tensor&)>& loss, const Tensor& x) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  optimizer.zero_grad();
  loss(x).backward();
  optimizer.step();
}

/// The loss reads the classes only; the boxes' weights stay what they were.
TwoHeads on_one_device() {
  TwoHeads net = make();
  for (int step = 0; step < kSteps; ++step) {
    step_on(
        net, [&](const Tensor& x) { return net->forward(x).first.square().mean(); }, rows(step));
  }
  return net;
}

/// The same over two data ranks. What it threw, if it did.
std::optional<std::string> over_two(const DDPOptions& options,
                                    const std::function<void(TwoHeads&)>& prepare = {}) {
  const TwoHeads expected = on_one_device();
  std::optional<std::string> thrown;
  oslo::run_as_threads(2, [&](oslo::World world) {
    const oslo::MPU mpu(world);
    TwoHeads net = make();
    if (prepare) prepare(net);
    oslo::DistributedDataParallel<TwoHeads> ddp(net, mpu.data_group(), options);
    const auto loss = [&](const Tensor& x) { return ddp.forward(x).first.square().mean(); };
    try {
      for (int step = 0; step < kSteps; ++step) {
        step_on(net, loss, rows(step).slice(0, 3 * world.rank(), 3 * world.rank() + 3));
      }
    } catch (const oslo::Error& error) {
      if (world.rank() == 0) thrown = error.what();
      return;
    }
    for (const auto& parameter : expected->named_parameters()) {
      const Tensor& found = net->named_parameters()[parameter.key()];
      EXPECT_TRUE(torch::allclose(found, parameter.value(), 1e-12, 1e-12)) << parameter.key();
    }
  });
  return thrown;
}

TEST(DataParallelUnusedHead, IsNamed) {
  const auto thrown = over_two(DDPOptions());
  ASSERT_TRUE(thrown.has_value());
  oslo::test::expect_contains(
      *thrown, {"no gradient to boxes.weight, boxes.bias (2 of 6", "find_unused_parameters(true)"});
}

/// A result that the loss leaves out depends on the head, so that the search finds it in use.
TEST(DataParallelUnusedHead, IsNoUnusedParameterWhereForwardReturnsIt) {
  const auto thrown = over_two(DDPOptions().find_unused_parameters(true));
  ASSERT_TRUE(thrown.has_value());
  oslo::test::expect_contains(*thrown, {"boxes.weight", "let every output of forward take part"});
}

TEST(DataParallelUnusedHead, TrainsWhereEveryStepIsTheSame) {
  EXPECT_EQ(over_two(DDPOptions().static_graph(true)), std::nullopt);
}

TEST(DataParallelUnusedHead, TrainsFrozen) {
  EXPECT_EQ(over_two(DDPOptions(),
                     [](TwoHeads& net) {
                       for (Tensor& parameter : net->boxes->parameters()) {
                         parameter.requires_grad_(false);
                       }
                     }),
            std::nullopt);
}

}  // namespace
