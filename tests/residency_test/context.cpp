// What the values of one model share.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/residency_test/stages.h"

namespace oslo::test {
namespace {

using torch::Tensor;

TEST(ModelContext, AMeshHasOne) {
  const MPU mpu(World::fake(0, 2), MpuOptions().tensor_parallel_size(2));
  EXPECT_EQ(context_of(mpu.tensor_mesh()), context_of(mpu.mesh({"tensor"})));
  const MPU other(mpu.world(), MpuOptions().tensor_parallel_size(2));
  EXPECT_NE(context_of(mpu.tensor_mesh()), context_of(other.tensor_mesh()));
  EXPECT_TRUE(over_same_ranks(context_of(mpu.tensor_mesh()), context_of(other.tensor_mesh())));
}

TEST(ModelContext, KeepsItsMesh) {
  auto mesh = std::make_shared<const Mesh>(std::vector{World::fake(0, 1).make_group("one", {0})});
  const std::weak_ptr<const Mesh> there = mesh;
  ContextPtr context = context_of(mesh);
  mesh = nullptr;
  ASSERT_FALSE(there.expired());
  EXPECT_EQ(context->mesh().axis(0)->name(), "one");
  context = nullptr;
  EXPECT_TRUE(there.expired());
}

TEST(ModelContext, DrawsAsTheMpuSays) {
  const MpuOptions two = MpuOptions().tensor_parallel_size(2);
  const MPU mpu(World::fake(0, 2), MpuOptions(two).random_mode(RandomMode::per_rank));
  const ContextPtr context = context_of(mpu.mesh({"data", "tensor"}));
  EXPECT_EQ(context->random_mode(), RandomMode::per_rank);
  EXPECT_EQ(context->sharded_generator(), mpu.random().sharded());
  EXPECT_EQ(context_of(MPU(World::fake(0, 2), two).tensor_mesh())->random_mode(),
            RandomMode::like_one_device);
}

}  // namespace
}  // namespace oslo::test
