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
    ParallelModel parallel = initialize(net, zero_config("", 3, 0, kGathered), in(world));
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

/// Beside the memory that ranks share, which no allocator has handed out: a layer as it is made,
/// and the part of it that goes there.
TEST_P(ShardedMemory, OfDeferredWeightsARankMakesOnePartAfterTheOther) {
  const int ranks = GetParam();
  constexpr int64_t kLayer = DeepImpl::kWidth * DeepImpl::kWidth * 4;
  test::CountedMemory memory;
  run_as_threads(ranks, [&](World world) {
    at::set_num_threads(1);
    Deep net = test::make_seeded(1, [] {
      const DeferredInit deferred;
      return Deep();
    });
    world.barrier();
    const int64_t before = memory.bytes();
    if (world.rank() == 0) memory.take_peak();
    world.barrier();
    ParallelModel parallel = initialize(net, zero_config("", 3, 0, kOneCopy), in(world));
    world.barrier();
    if (world.rank() == 0) {
      EXPECT_LT(memory.take_peak() - before, ranks * 2 * kLayer);
      EXPECT_LT(memory.bytes() - before, kLayer);
    }
    world.barrier();
  });
}

/// Over Gloo the layer that is expected next is under way, too, and what goes or comes is there
/// twice until it has: how much of this at once depends on how far the ranks are apart.
TEST(ShardedMemoryOverGloo, HoldsFewLayers) {
  constexpr int kRanks = 2;
  constexpr int64_t kLayer = DeepImpl::kWidth * DeepImpl::kWidth * 4;
  test::CountedMemory memory;
  run_as_threads(kRanks, [&](World world) {
    at::set_num_threads(1);
    Deep net = test::make_seeded(1, [] { return Deep(); });
    ParallelModel parallel = initialize(net, zero_config(R"(, "backend": "gloo")", 3), in(world));
    DistributedDataParallel<Deep> ddp(net, parallel.mpu().data_group());
    const Tensor x = torch::ones({3, DeepImpl::kWidth}) * (1 + world.rank());
    for (int step = 0; step < 2; ++step) ddp.forward(x).sum().backward();
    world.barrier();
    const int64_t at_rest = memory.bytes();
    if (world.rank() == 0) memory.take_peak();
    world.barrier();
    ddp.forward(x).sum().backward();
    world.barrier();
    if (world.rank() == 0) {
      EXPECT_LT(memory.take_peak() - at_rest, kRanks * 8 * kLayer);
    }
    world.barrier();
  });
}

/// Behind a forward.
void expect_no_casts(int ranks, const std::string& keys) {
  constexpr int64_t kCast = DeepImpl::kWidth * DeepImpl::kWidth * 2;
  for (const std::string& more : {std::string(), std::string(R"(, "master_weights": true)")}) {
    test::CountedMemory memory;
    run_as_threads(ranks, [&](World world) {
      at::set_num_threads(1);
      Deep net = test::make_seeded(1, [] { return Deep(); });
      ParallelModel parallel = initialize(
          net, zero_config(R"(, "amp": {"enabled": true})" + more, 3, 0, keys), in(world));
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

/// Nor are casts of a weight, or of a view of one, by which C++'s nn::Linear multiplies.
TEST_P(ShardedMemory, CastsDoNotWaitForBackward) {
  const int ranks = GetParam();
  for (const std::string& keys : {kGathered, kOneCopy}) expect_no_casts(ranks, keys);
}

/// Three layers of a transformer in LibTorch's own classes, of width 768 as in PyTorch's
/// test_fully_shard_memory.py, and few words.
struct ThreeLayersImpl : torch::nn::Module {
  ThreeLayersImpl() {
    words = register_module("words", torch::nn::Embedding(32, kWidth));
    const auto options = torch::nn::TransformerEncoderLayerOptions(kWidth, 12)
                             .dim_feedforward(4 * kWidth)
                             .dropout(0);
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::TransformerEncoderLayer(options));
    register_module("layers", layers);
    head = register_module("head", torch::nn::Linear(kWidth, 32));
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = words(tokens);
    for (const auto& layer : *layers) {
      x = layer->as<torch::nn::TransformerEncoderLayer>()->forward(x);
    }
    return head(x);
  }
  static constexpr int64_t kWidth = 768;
  torch::nn::Embedding words{nullptr};
  torch::nn::ModuleList layers;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(ThreeLayers);

class ShardedPeaks : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Reshard, ShardedPeaks, ::testing::Bool());

/// acceptance K12: the inequalities of PyTorch's test, for both ranks together.
TEST_P(ShardedPeaks, AreThoseOfPyTorchOrBelow) {
  constexpr int kRanks = 2;
  const bool reshard = GetParam();
  int64_t block = 0, whole = 0;
  {
    ThreeLayers shapes;
    for (const Tensor& each : shapes->layers[0]->parameters()) block += each.nbytes();
    for (const Tensor& each : shapes->parameters()) whole += each.nbytes();
  }
  const int64_t outside = whole - 3 * block, part = whole / kRanks;
  constexpr int64_t kMegabyte = 1 << 20;
  test::CountedMemory memory;
  const int64_t before = memory.bytes();
  run_as_threads(kRanks, [&](World world) {
    at::set_num_threads(1);
    ThreeLayers net = test::make_seeded(1, [] { return ThreeLayers(); });
    ParallelModel parallel = initialize(
        net,
        zero_config("", 3, 0,
                    kGathered + (reshard ? R"(, "reshard": true)" : R"(, "reshard": false)")),
        in(world));
    DistributedDataParallel<ThreeLayers> ddp(net, parallel.mpu().data_group());
    AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
    const Tensor tokens = torch::arange(2 * 3).view({3, 2}) + world.rank();
    /// Of each rank, as all do the same; `peak` is what there was at most since the last one.
    const auto expect_most = [&](bool peak, int64_t bytes, const char* when) {
      world.barrier();
      if (world.rank() == 0) {
        const int64_t most = memory.take_peak(), now = memory.bytes();
        EXPECT_LE(((peak ? most : now) - before) / kRanks, bytes) << when;
      }
      world.barrier();
    };
    expect_most(false, part + block + 4 * kMegabyte, "initialize");
    for (int step = 0; step < 2; ++step) {
      const int64_t states = step == 0 ? 0 : 2 * part;
      Tensor loss = ddp.forward(tokens).square().mean();
      expect_most(true,
                  (reshard ? 3 * block + outside : whole + block) + part + states + 2 * kMegabyte,
                  "forward");
      loss.backward();
      loss.reset();
      expect_most(true,
                  (reshard ? 3 * block + outside + 2 * part : whole + part + block * 3 / 2) +
                      states + 2 * kMegabyte,
                  "backward");
      optimizer.step();
      expect_most(false, 4 * part + kMegabyte, "step");
      optimizer.zero_grad();
      expect_most(false, 3 * part + kMegabyte, "zero_grad");
    }
  });
}

}  // namespace
}  // namespace oslo::zero_test
