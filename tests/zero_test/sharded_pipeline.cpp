// What a step of a pipeline gathers at stage 3 (acceptance Z12): 8 micro-batches, 2 stages, 2
// replicas.
#include "tests/zero_test/net.h"

namespace oslo::zero_test::in_stages {
namespace {

struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    for (int i = 0; i < 4; ++i) blocks->push_back(torch::nn::Linear(7, 7));
    register_module("blocks", blocks);
    to(torch::kDouble);
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *blocks) x = torch::tanh(block->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Deep);

constexpr int kMicroBatches = 8;
constexpr int kBuckets = 2;  ///< of a stage: its layers

/// All-gathers of a step on this rank.
int64_t gathers_of_a_step(World world, const std::string& keys) {
  at::set_num_threads(1);
  Deep plain = test::make_seeded(3, [] { return Deep(); });
  Deep net = test::make_seeded(3, [] { return Deep(); });
  ParallelModel parallel =
      initialize(net,
                 Config::parse(R"({"model_parallelism": {"pipeline_parallel_size": 2}, )"
                               R"("zero_optimization": {"enabled": true, "stage": 3)" +
                               keys + "}}"),
                 in(world));
  const MPU& mpu = parallel.mpu();
  torch::optim::SGD reference(plain->parameters(), torch::optim::SGDOptions(0.1)),
      optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(kMicroBatches));
  int64_t gathers = 0;
  for (int step = 0; step < 3; ++step) {
    const Tensor rows = torch::sin(torch::arange(32 * 7, torch::kDouble).view({32, 7}) + step);
    reference.zero_grad();
    plain->forward(rows).square().mean().backward();
    reference.step();
    optimizer.zero_grad();
    Ledger& ledger = mpu.data_group()->ledger();
    ledger.clear();
    schedule.forward_backward_step(
        Tensors{rows.tensor_split(2)[mpu.rank("data")]},
        [&](const Tensors& micro) { return net->forward(micro[0]).square().mean(); });
    gathers = ledger.total("all_gather").calls;
    // A step's gradients come in each micro-batch, bucket by bucket.
    EXPECT_EQ(ledger.total("reduce_scatter").calls, kBuckets * kMicroBatches);
    optimizer.step();
    for (const auto& each : net->named_parameters()) {
      EXPECT_TRUE(torch::allclose(full_tensor(each.value()), plain->named_parameters()[each.key()],
                                  1e-10, 1e-12))
          << keys << " step " << step << ": " << each.key();
    }
  }
  return gathers;
}

TEST(ShardedPipeline, GathersOnceAStep) {
  run_as_threads(4, [](World world) {
    EXPECT_EQ(gathers_of_a_step(world, kGathered), kBuckets);
    EXPECT_EQ(gathers_of_a_step(world, kGathered + R"(, "reshard": false)"), kBuckets);
  });
}

TEST(ShardedPipeline, GathersInEachMicroBatchWhereWeightsGo) {
  run_as_threads(4, [](World world) {
    const int64_t gathers = gathers_of_a_step(world, kGathered + R"(, "reshard": true)");
    EXPECT_GE(gathers, kBuckets * kMicroBatches);
    EXPECT_LE(gathers, 2 * kBuckets * kMicroBatches);
  });
}

}  // namespace
}  // namespace oslo::zero_test::in_stages
