// Ranks that are threads and share one GPU, over the staged transport: collectives behind and
// before a busy compute stream, and training beside one device.
#include <ATen/ATen.h>
#include <ATen/cuda/Sleep.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <functional>
#include <numeric>
#include <vector>

#include "benchmarks/ranks/model.h"
#include "mpu/group/messages.h"
#include "tests/gpu/gpu.h"
#include "tests/support/seeded.h"
#include "tests/support/temporary_directory.h"

namespace oslo {
namespace {

using at::Tensor;

/// `body` on each of `size` ranks, with a compute stream of its own.
void on_one_gpu(int size, const std::function<void(World, c10::Device)>& body) {
  run_as_threads(size, [&](World world) {
    const c10::Device device = local_device(world, "cuda:0");
    const c10::StreamGuard stream(
        c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device));
    body(world, device);
  });
}

/// Some tens of milliseconds in which the current stream does nothing else.
void keep_busy() {
  at::cuda::sleep(50'000'000);
}

std::vector<int> all_of(const World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TEST(SharedGpu, CollectivesWaitForTheComputeStreamAndItForThem) {
  OSLO_NEEDS_A_GPU();
  on_one_gpu(3, [](World world, c10::Device device) {
    const auto group = world.make_group("all", all_of(world));
    EXPECT_EQ(group->process_group()->getBackend(c10::kCUDA)->getBackendName(), "staged");
    const auto options = at::device(device).dtype(at::kDouble);
    for (const int64_t size : {1, 1000, 3'000'000}) {
      Tensor tensor = at::zeros({size}, options);
      keep_busy();
      tensor.add_(world.rank() + 1);
      const Tensor sum = group->all_reduce(tensor);
      EXPECT_TRUE(at::equal(sum, at::full({size}, 6, options)));
      const std::vector<int64_t> sizes{2, 0, 3};
      Tensor part = at::zeros({sizes[world.rank()], size}, options);
      keep_busy();
      part.add_(world.rank() + 1);
      const Tensor whole = group->all_gather(part, 0, sizes);
      EXPECT_TRUE(at::equal(group->reduce_scatter(whole, 0, sizes), part * 3));
    }
  });
}

TEST(SharedGpu, MessagesCross) {
  OSLO_NEEDS_A_GPU();
  on_one_gpu(2, [](World world, c10::Device device) {
    const auto group = world.make_group("all", all_of(world));
    const int other = 1 - world.rank();
    keep_busy();
    group->send(at::full({1000, 7}, world.rank(), at::device(device)), other);
    const Tensor came = group->receive(other)[0];
    EXPECT_EQ(came.device(), device);
    EXPECT_TRUE(at::equal(came, at::full({1000, 7}, other, at::device(device))));
  });
}

struct Grid {
  int world, tensor;
};
void PrintTo(const Grid& grid, std::ostream* out) {
  *out << grid.world << " ranks, tensor " << grid.tensor;
}

class Training : public testing::TestWithParam<Grid> {};

TEST_P(Training, EqualsOneDevice) {
  OSLO_NEEDS_A_GPU();
  const auto [size, tensor] = GetParam();
  const test::TemporaryDirectory folder;
  on_one_gpu(size, [&, tensor = tensor](World world, c10::Device device) {
    const auto make = [&] {
      bench::Gpt model(61, 12, 48, 6, 2);
      model->to(device, at::kDouble);
      return model;
    };
    bench::Gpt reference = make(), model = make();
    const auto tokens = (at::arange(48, at::device(device)) * 7).remainder(61).view({4, 12});
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(tokens); };
    Config config = Config::parse(R"({"model_parallelism": {"enable": true}})");
    config.set(c10::str("model_parallelism.tensor_parallel_size=", tensor));
    ParallelModel parallel = initialize(model, config, how);
    const MPU& mpu = parallel.mpu();
    DistributedDataParallel<bench::Gpt> ddp(model, mpu.get_data_parallel_group());
    const torch::optim::AdamWOptions adam(1e-3);
    torch::optim::AdamW optimizer(model->parameters(), adam);
    torch::optim::AdamW reference_optimizer(reference->parameters(), adam);
    const auto own = [&](const Tensor& whole) {
      return whole.tensor_split(mpu.get_data_parallel_world_size())[mpu.get_data_parallel_rank()];
    };
    const auto loss_of = [](const Tensor& logits, const Tensor& targets) {
      return torch::nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
    };
    for (int step = 0; step < 3; ++step) {
      const Tensor targets = (tokens + 3 + step).remainder(61);
      optimizer.zero_grad();
      reference_optimizer.zero_grad();
      loss_of(reference->forward(tokens), targets).backward();
      loss_of(ddp.forward(own(tokens)), own(targets)).backward();
      const auto expected = reference->named_parameters();
      for (const auto& each : model->named_parameters()) {
        EXPECT_TRUE(at::allclose(full_tensor(each.value().grad()), expected[each.key()].grad(),
                                 1e-9, 1e-10))
            << each.key();
      }
      parallel.clip_grad_norm_(1.0);
      torch::nn::utils::clip_grad_norm_(reference->parameters(), 1.0);
      optimizer.step();
      reference_optimizer.step();
    }
    EXPECT_TRUE(verify(parallel, reference, tokens).equal());
    parallel.save_parallelized(folder.path());
    for (const Tensor& parameter : model->parameters()) {
      const torch::NoGradGuard no_grad;
      parameter.zero_();
    }
    parallel.from_parallelized(folder.path());
    EXPECT_TRUE(verify(parallel, reference, tokens).equal());
  });
}

INSTANTIATE_TEST_SUITE_P(Grids, Training, testing::Values(Grid{2, 2}, Grid{2, 1}, Grid{4, 2}),
                         [](const auto& info) {
                           return c10::str("world_", info.param.world, "_tensor_",
                                           info.param.tensor);
                         });

TEST(SharedGpu, DropoutDrawsWhatOneDeviceDraws) {
  OSLO_NEEDS_A_GPU();
  // Ranks that are threads share the device's generator, so one of them alone.
  const World world = World::fake(0, 2);
  const MPU mpu(world, MpuOptions().tensor_parallel_size(2));
  const auto options = at::device(c10::Device(c10::kCUDA, 0)).requires_grad(false);
  const Tensor whole = at::ones({6, 8}, options);
  const Tensor cut = from_local(whole.narrow(1, 0, 4).contiguous(), mpu.tensor_mesh(),
                                {Placement::shard(1)}, {6, 8});
  at::manual_seed(5);
  const Tensor expected = at::dropout(whole, 0.5, true);
  at::manual_seed(5);
  EXPECT_TRUE(at::equal(local_tensor(at::dropout(cut, 0.5, true)), expected.narrow(1, 0, 4)));
  // In place LibTorch draws in another way.
  Tensor written = whole.clone(), cut_written = cut;
  at::manual_seed(6);
  at::dropout_(written, 0.5, true);
  at::manual_seed(6);
  at::dropout_(cut_written, 0.5, true);
  EXPECT_TRUE(at::equal(local_tensor(cut_written), written.narrow(1, 0, 4)));
}

}  // namespace
}  // namespace oslo
