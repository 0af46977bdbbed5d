// NCCL at a world of one, all that a single GPU allows: two ranks need two.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "mpu/launch/local_device.h"
#include "mpu/transport/cuda_support.h"
#include "tests/gpu/gpu.h"

namespace oslo {
namespace {

using at::Tensor;

TEST(Nccl, IsThereWhereTheCudaLibraryIsLoaded) {
  ASSERT_NE(cuda_support(), nullptr);
  EXPECT_EQ(cuda_support()->why_no_device().empty(), at::hasCUDA());
}

TEST(Nccl, CarriesAGroupOfOne) {
  OSLO_NEEDS_A_GPU();
  const World world = World::alone();
  const c10::Device device = local_device(world, "cuda");
  EXPECT_EQ(device, c10::Device(c10::kCUDA, 0));
  const auto group = world.make_group("all", {0}, Transport::nccl);
  auto& backend = *group->process_group()->getBackend(c10::kCUDA);
  EXPECT_EQ(backend.getBackendName(), "nccl");
  // The group itself moves nothing at size 1, so LibTorch's interface below it.
  std::vector<Tensor> tensors{at::arange(1000, at::device(device).dtype(at::kFloat))};
  const Tensor before = tensors[0].clone();
  backend.allreduce(tensors)->wait();
  EXPECT_TRUE(at::equal(tensors[0], before));
  Tensor gathered = at::zeros_like(before), scattered = at::zeros_like(before);
  backend._allgather_base(gathered, tensors[0])->wait();
  backend._reduce_scatter_base(scattered, tensors[0])->wait();
  EXPECT_TRUE(at::equal(gathered, before));
  EXPECT_TRUE(at::equal(scattered, before));
}

TEST(Nccl, IsRefusedWhereRanksShareAGpu) {
  OSLO_NEEDS_A_GPU();
  EXPECT_THROW(run_as_threads(2,
                              [](World world) {
                                local_device(world, "cuda:0");
                                world.make_group("all", {0, 1}, Transport::nccl);
                              }),
               Error);
}

}  // namespace
}  // namespace oslo
