// A backward pass that throws on all ranks: the steps behind it are those of a run that never had
// it. LibTorch's own reducer refuses them.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <stdexcept>

#include "mpu/grid/mpu.h"
#include "parallelizers/data/distributed_data_parallel.h"
#include "tests/support/seeded.h"

namespace {

using oslo::DDPOptions;
using torch::Tensor;

struct Layered : torch::nn::Module {
  Layered() {
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(7, 7));
    to(torch::kDouble);
  }
  Tensor forward(Tensor x) {
    for (size_t i = 0; i < layers->size(); ++i) {
      x = torch::tanh(layers[i]->as<torch::nn::Linear>()->forward(x));
      if (i == throws_at) {
        x.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("stop"); });
      }
    }
    return x;
  }
  torch::nn::ModuleList layers{register_module("layers", torch::nn::ModuleList())};
  std::optional<size_t> throws_at;
};

constexpr int kRanks = 2;

Tensor rows(int step, int rank) {
  return torch::sin(torch::arange(21, torch::kDouble).view({3, 7}) * (step + 1.0) + rank);
}

/// `layer`: how far the pass comes. The last has given no gradient yet, of the first all buckets
/// but one have set out.
void expect_ordinary_steps(const DDPOptions& options, size_t layer) {
  oslo::run_as_threads(kRanks, [&](oslo::World world) {
    const oslo::MPU mpu(world);
    const auto make = [] {
      return oslo::test::make_seeded(3, [] { return std::make_shared<Layered>(); });
    };
    const auto net = make(), plain = make();
    oslo::DistributedDataParallel<Layered> ddp(net, mpu.data_group(), options);
    torch::optim::Adam optimizer(net->parameters()), reference(plain->parameters());
    for (int step = 0; step < 6; ++step) {
      if (step == 0 || step == 3) {
        optimizer.zero_grad();
        net->throws_at = layer;
        EXPECT_THROW(ddp.forward(rows(9, world.rank())).square().mean().backward(),
                     std::runtime_error);
        net->throws_at.reset();
      }
      optimizer.zero_grad();
      ddp.forward(rows(step, world.rank())).square().mean().backward();
      optimizer.step();
      reference.zero_grad();
      for (int rank = 0; rank < kRanks; ++rank) {
        (plain->forward(rows(step, rank)).square().mean() / kRanks).backward();
      }
      reference.step();
      for (const auto& each : plain->named_parameters()) {
        const Tensor& found = net->named_parameters()[each.key()];
        EXPECT_TRUE(torch::allclose(found, each.value(), 1e-12, 1e-12))
            << each.key() << " behind step " << step;
      }
    }
  });
}

class ThrownPasses : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Layers, ThrownPasses, testing::Values(0, 1, 3));

TEST_P(ThrownPasses, AreForgotten) {
  const DDPOptions small = DDPOptions().bucket_cap_mb(1e-4);  // a bucket a layer
  for (const DDPOptions& options :
       {DDPOptions(), small, DDPOptions(small).find_unused_parameters(true),
        DDPOptions(small).gradient_as_bucket_view(true), DDPOptions(small).static_graph(true)}) {
    expect_ordinary_steps(options, GetParam());
  }
}

}  // namespace
