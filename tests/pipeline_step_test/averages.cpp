// Averages of gradients over data replicas, which set out while the last backward pass runs.
#include "parallelizers/data/exchange/step_exchange.h"

#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline_parity::Tensors;
using torch::Tensor;

constexpr int64_t kUnits = 3;
/// Two layers' gradients do not fit into one bucket.
constexpr int64_t kLayerBytes = 8 * (kUnits * kUnits + kUnits);

torch::nn::Sequential three_layers() {
  return make_seeded(5, [] {
    torch::nn::Sequential layers;
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(kUnits, kUnits));
    layers->to(torch::kDouble);
    return layers;
  });
}

Tensor rows_of(int rank, int pass) {
  return make_seeded(10 * rank + pass, [] { return torch::randn({4, kUnits}, torch::kDouble); });
}

/// What replica `rank` computes in a pass: every other one leaves the middle layer out in the last.
Tensor loss_of(torch::nn::Sequential& layers, int rank, int pass) {
  Tensor x = rows_of(rank, pass);
  for (int i = 0; i < 3; ++i) {
    if (i == 1 && pass == 1 && rank % 2 == 1) continue;
    x = torch::tanh(layers[i]->as<torch::nn::Linear>()->forward(x));
  }
  return x.pow(2).sum();
}

constexpr int kReplicas = 3;

/// Runs a replica's two passes and averages; what was counted when the first layer's gradient of
/// the last pass was about to come.
int64_t average_two_passes(World world, torch::nn::Sequential& layers) {
  const MPU mpu(world);
  Group& group = *mpu.data_group();
  int64_t counted = -1;
  layers[0]->as<torch::nn::Linear>()->weight.register_hook(
      [&](const Tensor&) { counted = group.ledger().total("all_reduce").calls; });
  StepExchange average(group, layers->parameters(), kLayerBytes);
  loss_of(layers, world.rank(), 0).backward();
  EXPECT_EQ(counted, 0);
  average.last_pass_begins([](const Tensor&) { return true; });
  loss_of(layers, world.rank(), 1).backward();
  average.finish();
  EXPECT_EQ(group.ledger().total("all_reduce").calls, 3);
  return counted;
}

/// The last layer's gradients travel when the first layer's come; a layer that a replica did not
/// use goes with what earlier passes gave it, when the pass is over.
TEST(GradientAverages, SetOutInTheLastPassInOneOrder) {
  std::vector<int64_t> counted(kReplicas);
  run_as_threads(kReplicas, [&](World world) {
    auto layers = three_layers(), reference = three_layers();
    for (int rank = 0; rank < kReplicas; ++rank) {
      for (int pass = 0; pass < 2; ++pass) (loss_of(reference, rank, pass) / kReplicas).backward();
    }
    counted[world.rank()] = average_two_passes(world, layers);
    parity::for_each_parameter(
        *layers, *reference, [](const std::string& name, const Tensor& mine, const Tensor& theirs) {
          parity::expect_close(mine.grad(), theirs.grad(), name);
        });
  });
  EXPECT_THAT(counted, testing::ElementsAre(2, 1, 2));
}

TEST(GradientAverages, ASecondGradientOfTheLastPassIsRefused) {
  std::vector<std::string> errors(2);
  run_as_threads(2, [&](World world) {
    auto layers = three_layers();
    const MPU mpu(world);
    StepExchange average(*mpu.data_group(), layers->parameters(), kLayerBytes);
    average.last_pass_begins([](const Tensor&) { return true; });
    loss_of(layers, world.rank(), 0).backward();
    try {
      loss_of(layers, world.rank(), 0).backward();
    } catch (const std::exception& error) {
      errors[world.rank()] = error.what();
    }
    average.finish();
  });
  EXPECT_THAT(errors, testing::Each(testing::HasSubstr("call backward once in a micro-batch")));
}

/// Layers of which each fills a bucket: the last layer's sets out in the last micro-batch, the
/// other one is waited for at once.
TEST(GradientAverages, OfAScheduleSetOutInTheLastMicroBatch) {
  constexpr int64_t kManyUnits = 1811;
  static_assert(8 * kManyUnits * kManyUnits > StepExchange::kBucketBytes);
  for (const char* kind : {"1f1b", "zbv"}) {
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      auto layers = make_seeded(5, [&] {
        return torch::nn::Sequential(torch::nn::Linear(kManyUnits, kManyUnits),
                                     torch::nn::Linear(kManyUnits, kManyUnits));
      });
      layers->to(torch::kDouble);
      const auto rows = [&](int rank) {
        return make_seeded(rank, [&] { return torch::randn({4, kManyUnits}, torch::kDouble); });
      };
      const auto loss = [&](const Tensor& x) { return layers->forward(x).pow(2).mean(); };
      const Tensors batches = {rows(0), rows(1)};
      Tensors expected;
      for (const Tensor& batch : batches) (loss(batch) / 2).backward();
      for (const Tensor& each : layers->parameters()) {
        expected.push_back(each.grad().slice(0, 0, 3).clone());
      }
      layers->zero_grad();
      InitializeOptions how;
      how.world = world;
      const auto config = Config::parse(pipeline_parity::config_of({1, 1, 1}, kind));
      const ParallelModel parallel = initialize(layers, config, how);
      const Ledger& ledger = parallel.mpu().data_group()->ledger();
      std::vector<int64_t> counted;
      layers[0]->as<torch::nn::Linear>()->weight.register_hook(
          [&](const Tensor&) { counted.push_back(ledger.total("all_reduce").calls); });
      PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
      schedule.forward_backward_step({batches[world.rank()]},
                                     [&](const Tensors& micro) { return loss(micro[0]); });
      EXPECT_THAT(counted, testing::ElementsAre(0, 1));
      EXPECT_EQ(ledger.total("all_reduce").calls, 2);
      const auto parameters = layers->parameters();
      for (size_t i = 0; i < expected.size(); ++i) {
        parity::expect_close(parameters[i].grad().slice(0, 0, 3), expected[i], kind);
      }
    });
  }
}

}  // namespace
}  // namespace oslo::test
