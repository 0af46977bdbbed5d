// Bytes that LibTorch's allocator has handed out, of all ranks together, at stage 3.
#include "tests/support/counted_memory.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    for (int i = 0; i < kLayers; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    }
    register_module("layers", layers);
    bias = register_parameter("bias", torch::zeros({kWidth}));
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) x = layer->as<torch::nn::Linear>()->forward(x);
    return x + bias;
  }
  static constexpr int kLayers = 8;
  static constexpr int64_t kWidth = 256;
  torch::nn::ModuleList layers;
  Tensor bias;
};
TORCH_MODULE(Deep);

class ShardedMemory : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShardedMemory, ::testing::Values(2, 4));

/// acceptance Z10, for all ranks together
TEST_P(ShardedMemory, HoldsPartsAndFewLayers) {
  const int ranks = GetParam();
  constexpr int64_t kLayer = DeepImpl::kWidth * DeepImpl::kWidth * 4;
  constexpr int64_t kWhole = DeepImpl::kLayers * kLayer + DeepImpl::kWidth * 4;
  test::CountedMemory memory;
  const int64_t before = memory.bytes();
  run_as_threads(ranks, [&](World world) {
    at::set_num_threads(1);
    Deep net = test::make_seeded(1, [] { return Deep(); });
    ParallelModel parallel = initialize(net, zero_config("", 3), in(world));
    DistributedDataParallel<Deep> ddp(net, parallel.mpu().data_group());
    const Tensor x = torch::ones({3, DeepImpl::kWidth}) * (1 + world.rank());
    ddp.forward(x).sum().backward();
    world.barrier();
    if (world.rank() == 0) {
      // Weights and gradients are there once, beside inputs and what else is small.
      EXPECT_LE(memory.bytes() - before, 2 * kWhole + ranks * 64 * 1024);
      memory.take_peak();
    }
    world.barrier();
    const int64_t at_rest = memory.bytes();
    ddp.forward(x).sum().backward();
    world.barrier();
    if (world.rank() == 0) {
      EXPECT_LT(memory.take_peak() - at_rest, ranks * 5 * kLayer);
    }
    world.barrier();
  });
}

/// Nor are casts of a weight, or of a view of one, by which C++'s nn::Linear multiplies.
TEST_P(ShardedMemory, CastsDoNotWaitForBackward) {
  const int ranks = GetParam();
  constexpr int64_t kCast = DeepImpl::kWidth * DeepImpl::kWidth * 2;
  for (const std::string& more : {std::string(), std::string(R"(, "master_weights": true)")}) {
    test::CountedMemory memory;
    run_as_threads(ranks, [&](World world) {
      at::set_num_threads(1);
      Deep net = test::make_seeded(1, [] { return Deep(); });
      ParallelModel parallel =
          initialize(net, zero_config(R"(, "amp": {"enabled": true})" + more, 3), in(world));
      DistributedDataParallel<Deep> ddp(net, parallel.mpu().data_group());
      const Tensor x = torch::ones({3, DeepImpl::kWidth}) * (1 + world.rank());
      ddp.forward(x).sum().backward();
      world.barrier();
      const int64_t at_rest = memory.bytes();
      const Tensor out = ddp.forward(x);
      world.barrier();
      if (world.rank() == 0) {
        EXPECT_LT(memory.bytes() - at_rest, ranks * kCast) << more;
      }
      world.barrier();
      out.sum().backward();
    });
  }
}

}  // namespace
}  // namespace oslo::zero_test
