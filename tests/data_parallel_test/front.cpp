// What DistributedDataParallel takes, looks into and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/data_parallel_test/net.h"
#include "tests/support/error_of.h"

namespace data_parallel_test {
namespace {

using oslo::test::error_of;
using testing::HasSubstr;

TEST(DataParallelFront, LooksIntoWhatForwardReturns) {
  using Nested = std::pair<std::vector<Tensor>,
                           std::tuple<std::optional<Tensor>, std::map<std::string, Tensor>, int>>;
  static_assert(oslo::OutputTensors<Nested>::known);
  static_assert(!oslo::OutputTensors<int>::known);
  const Tensor t = torch::zeros({1});
  std::vector<Tensor> found;
  oslo::collect_tensors(Nested{{t, Tensor(), t}, {t, {{"a", t}}, 3}}, found);
  EXPECT_EQ(found.size(), 4u);
}

TEST(DataParallelAlone, DoesNothing) {
  const MPU mpu(World::alone());
  Net net = seeded<Net>(0);
  DistributedDataParallel<Net> ddp(net, mpu.get_data_parallel_group());
  const Tensor x = random({4, 6}, 1);
  EXPECT_TRUE(ddp.forward(x).equal(net->forward(x)));
  for (const Tensor& parameter : net->parameters()) {
    EXPECT_EQ(torch::autograd::impl::try_get_grad_accumulator(parameter), nullptr);
  }
  EXPECT_TRUE(ddp.bucket_sizes().empty());
  const auto quiet = ddp.no_sync();
  ddp.forward(x).sum().backward();
  EXPECT_TRUE(ddp.ledger().entries().empty());
}

TEST(DataParallelFront, TakesHoldersPointersAndClasses) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Net net = seeded<Net>(0);
    const Tensor x = random({1, 6}, 1);
    DistributedDataParallel<NetImpl> by_class(net.ptr(), mpu.get_data_parallel_group());
    DistributedDataParallel<std::shared_ptr<NetImpl>> by_pointer(net.ptr(), mpu.data_group());
    DistributedDataParallel deduced(net, mpu.get_data_parallel_group(), DDPOptions());
    EXPECT_TRUE(by_class.forward(x).equal(by_pointer.forward(x)));
    EXPECT_TRUE(deduced.forward(x).equal(net->forward(x)));
    EXPECT_EQ(deduced->in.get(), net->in.get());
    EXPECT_EQ(deduced.module().get(), net.get());
  });
}

TEST(DataParallelErrors, DifferentModelsFailEverywhere) {
  oslo::run_as_threads(3, [](World world) {
    const MPU mpu(world);
    Net net;
    if (world.rank() == 2) net->out = net->replace_module("out", torch::nn::Linear(10, 5));
    const std::string error =
        error_of([&] { DistributedDataParallel<Net> ddp(net, mpu.data_group()); });
    EXPECT_EQ(error,
              "the model of rank 2 is not that of rank 0, in group data: there parameter "
              "out.weight [5, 10] Float, on rank 0 parameter out.weight [3, 10] Float; all "
              "ranks of the group must build the model alike");
  });
}

TEST(DataParallelErrors, ChangesAfterwardsAreNoticed) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Net net;
    DistributedDataParallel<Net> ddp(net, mpu.data_group());
    const auto error = [&] { return error_of([&] { ddp.forward(torch::ones({1, 6})); }); };
    net->in->bias.set_requires_grad(false);
    EXPECT_THAT(error(), HasSubstr("parameter in.bias was frozen after"));
    net->in->bias.set_requires_grad(true);
    net->to(torch::kDouble);
    EXPECT_THAT(error(), HasSubstr("parameter in.weight became Double"));
  });
}

TEST(DataParallelErrors, NothingToTrainAndSparseGradientsAreRefused) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Net frozen;
    for (Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    EXPECT_THAT(error_of([&] { DistributedDataParallel<Net>(frozen, mpu.data_group()); }),
                HasSubstr("no parameter of the model requires a gradient"));
    torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(3, 2).sparse(true));
    EXPECT_THAT(
        error_of([&] { DistributedDataParallel<torch::nn::Embedding>(sparse, mpu.data_group()); }),
        HasSubstr("sparse(true)"));
  });
}

TEST(DataParallelErrors, ALostRankEndsBackward) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    Net net = seeded<Net>(0);
    DistributedDataParallel<Net> ddp(net, mpu.data_group());
    const Tensor loss = ddp.forward(random({1, 6}, 1)).sum();
    if (world.rank() == 1) return;
    EXPECT_THAT(error_of([&] { loss.backward(); }),
                HasSubstr("all_reduce of gradients over group data (ranks 0 1) failed"));
  });
}

}  // namespace
}  // namespace data_parallel_test
