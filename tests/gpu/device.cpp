// What is done on the device itself: digests, checks of indices, random numbers, memory.
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include "mpu/group/device_digest.h"
#include "mpu/group/rank_check.h"
#include "tests/gpu/gpu.h"

namespace oslo {
namespace {

using at::Tensor;

TEST(Device, DigestsAreThoseOfTheCpusTensors) {
  OSLO_NEEDS_A_GPU();
  for (const int64_t size : {1, 7, 8, 1001, 5'000'000}) {
    const Tensor numbers = at::arange(size, at::kFloat).sin();
    EXPECT_EQ(device_digest(numbers.cuda()), device_digest(numbers)) << size;
    EXPECT_EQ(content_digest(numbers.cuda()), device_digest(numbers)) << size;
  }
}

TEST(Device, AnIndexThatIsNoneEndsTheDevicesWork) {
  OSLO_NEEDS_A_GPU();
  const MPU mpu(World::fake(0, 2), MpuOptions().tensor_parallel_size(2));
  const Tensor table =
      from_local(at::ones({5, 3}, at::kCUDA), mpu.tensor_mesh(), {Placement::shard(0)}, {10, 3});
  const auto looked_up = [&](int64_t index) {
    const Tensor rows =
        at::embedding(table, at::full({2}, index, at::device(at::kCUDA).dtype(at::kLong)));
    c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(0);
    return rows;
  };
  looked_up(9);
  EXPECT_ANY_THROW(looked_up(10));  // silently zero without the check
}

TEST(Device, RanksDrawForTheirPartFromTheirOwnStreams) {
  OSLO_NEEDS_A_GPU();
  const auto masks = [](int rank) {
    const MPU mpu(World::fake(rank, 2),
                  MpuOptions().tensor_parallel_size(2).seed(3).random_mode(RandomMode::per_rank));
    const Tensor x = from_local(at::ones({64, 8}, at::kCUDA), mpu.tensor_mesh(),
                                {Placement::shard(1)}, {64, 16});
    const Tensor first = local_tensor(at::dropout(x, 0.5, true)).clone();
    return std::pair(first, local_tensor(at::dropout(x, 0.5, true)).clone());
  };
  const auto [first, second] = masks(0);
  EXPECT_FALSE(at::equal(first, second));
  EXPECT_TRUE(at::equal(masks(0).first, first));
  EXPECT_FALSE(at::equal(masks(1).first, first));
  EXPECT_NEAR(first.ne(0).to(at::kFloat).mean().item<double>(), 0.5, 0.15);
}

TEST(Device, MemoryHeldIsTheDevices) {
  OSLO_NEEDS_A_GPU();
  const c10::Device device(c10::kCUDA, 0);
  const int64_t before = memory_held(device);
  const Tensor tensor = at::empty({1 << 24}, at::device(device).dtype(at::kByte));
  EXPECT_EQ(memory_held(device) - before, 1 << 24);
}

TEST(Device, AModelElsewhereThanItsRankIsRefused) {
  OSLO_NEEDS_A_GPU();
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::Linear(4, 3));
  model[0]->to(c10::Device(c10::kCUDA, 0));
  InitializeOptions how;
  how.world = World::alone();
  const Config config = Config::parse(R"({"model_parallelism": {"enable": true}})");
  EXPECT_THROW(initialize(model.ptr(), config, how), Error);
}

}  // namespace
}  // namespace oslo
