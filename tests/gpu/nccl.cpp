// NCCL at a world of one, all that a single GPU allows, and between two and more where they are.
#include <ATen/ATen.h>
#include <ATen/cuda/Sleep.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "mpu/group/messages.h"
#include "mpu/transport/backends/cuda_support.h"
#include "mpu/world/local_device.h"
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

/// `body` on each rank, with a GPU and a compute stream of its own.
void on_a_gpu_each(const std::function<void(Group&, const at::TensorOptions&)>& body) {
  run_as_threads(std::min(4, test::gpus()), [&](World world) {
    const c10::Device device = local_device(world, "cuda");
    const c10::StreamGuard stream(
        c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device));
    std::vector<int> ranks(world.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto group = world.make_group("all", ranks);
    EXPECT_EQ(group->process_group()->getBackend(c10::kCUDA)->getBackendName(), "nccl");
    body(*group, at::device(device).dtype(at::kDouble));
  });
}

TEST(Nccl, CollectivesWaitForTheComputeStreamAndItForThem) {
  OSLO_NEEDS_GPUS(2);
  on_a_gpu_each([](Group& group, const at::TensorOptions& options) {
    const int ranks = group.size(), rank = group.rank();
    const double sum = ranks * (ranks + 1) / 2.0;
    std::vector<int64_t> sizes(ranks, 3);  // uneven, and one empty
    sizes[0] = 5;
    sizes[1] = 0;
    for (int round = 0; round < 3; ++round) {
      Tensor tensor = at::zeros({1000}, options);
      at::cuda::sleep(50'000'000);
      tensor.add_(rank + 1);
      EXPECT_TRUE(at::equal(group.all_reduce(tensor.clone()), at::full({1000}, sum, options)));
      Pending started = group.start_all_reduce(tensor.clone());
      const Tensor part = at::full({sizes[rank], 7}, rank, options);
      const Tensor whole = group.all_gather(part, 0, sizes);
      EXPECT_TRUE(at::equal(group.reduce_scatter(whole, 0, sizes), part * ranks));
      EXPECT_TRUE(at::equal(started.wait(), at::full({1000}, sum, options)));
      group.broadcast(tensor, 1);
      EXPECT_TRUE(at::equal(tensor, at::full({1000}, 2, options)));
      group.process_group()->barrier()->wait();
    }
  });
}

/// Each sends before it receives, the first messages of all; and takes what comes in another order.
TEST(Nccl, MessagesOfARingDoNotWaitForEachOther) {
  OSLO_NEEDS_GPUS(2);
  on_a_gpu_each([](Group& group, const at::TensorOptions& options) {
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    const auto content = [&](int from, int tag) {
      return at::full({1000 * tag, 3}, 10.0 * from + tag, options);
    };
    at::cuda::sleep(50'000'000);
    for (const int tag : {1, 2, 3}) group.send({content(group.rank(), tag)}, next, tag);
    for (const int tag : {3, 1, 2}) {
      EXPECT_TRUE(at::equal(group.receive(previous, tag).at(0), content(previous, tag))) << tag;
    }
  });
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
