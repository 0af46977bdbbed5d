// Training with kernel fusion on a GPU that two ranks share, beside one device.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include "tests/gpu/gpu.h"

namespace oslo {
namespace {

using at::Tensor;

TEST(KernelFusion, TrainsAsOneDeviceDoes) {
  OSLO_NEEDS_A_GPU();
  run_as_threads(2, [](World world) {
    const c10::Device device = local_device(world, "cuda:0");
    const c10::StreamGuard stream(
        c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device));
    const auto make = [&] {
      torch::nn::Linear up(16, 64), down(64, 16);
      torch::nn::Sequential model(up, down);
      const torch::NoGradGuard no_grad;
      for (Tensor& each : model->parameters()) {
        each.copy_(at::arange(each.numel()).sin().view_as(each) * 0.1);
      }
      model->to(device);
      return model;
    };
    const auto loss_of = [](torch::nn::Sequential& model, const Tensor& x) {
      const auto& up = *model[0]->as<torch::nn::Linear>();
      const auto& down = *model[1]->as<torch::nn::Linear>();
      const Tensor hidden = at::gelu(at::linear(x, up.weight, up.bias), "tanh");
      return at::linear(hidden, down.weight, down.bias).square().mean();
    };
    torch::nn::Sequential plain = make(), model = make();
    InitializeOptions how;
    how.world = world;
    initialize(model.ptr(), Config::parse(R"({"kernel_fusion": true,
        "model_parallelism": {"tensor_parallel_size": 2}, "plan": {"0": "column", "1": "row"}})"),
               how);
    for (int step = 0; step < 4; ++step) {
      const Tensor x = (at::arange(24 * 16, at::device(device)) + step).cos().view({24, 16});
      loss_of(plain, x).backward();
      loss_of(model, x).backward();
      const auto expected = plain->parameters(), found = model->parameters();
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::allclose(full_tensor(found[i].grad()), expected[i].grad(), 1e-3, 1e-5))
            << i;
      }
    }
  });
}

}  // namespace
}  // namespace oslo
