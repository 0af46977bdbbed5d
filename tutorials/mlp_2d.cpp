// LiBai's huge_mlp_example.py: an MLP over data and tensor ranks at once, of one global input.
//
//   oslo run -n 4 -- ./mlp_2d
//   rank: 2, tensor shape: [16, 1024]
//   rank: 3, tensor shape: [16, 1024]
//   rank: 1, tensor shape: [16, 1024]
//   rank: 0, tensor shape: [16, 1024]
#include <oslo_cpp/oslo.h>

#include <iostream>

#include "device_option.h"

struct MLP2DImpl : torch::nn::Module {
  explicit MLP2DImpl(const oslo::MPU& mpu)
      : linear_1(register_module(
            "linear_1",
            oslo::nn::Linear(oslo::nn::LinearOptions(1024, 16384).parallel("col"), mpu))),
        linear_2(register_module(
            "linear_2",
            oslo::nn::Linear(oslo::nn::LinearOptions(16384, 1024).parallel("row"), mpu))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = linear_1(x);
    x = gelu(x);
    return linear_2(x);
  }

  oslo::nn::Linear linear_1, linear_2;
  torch::nn::GELU gelu;
};
TORCH_MODULE(MLP2D);

int main(int argc, char** argv) {
  try {
    const oslo::World world = oslo::World::from_environment();
    const torch::Device device = oslo::local_device(world, device_option(argc, argv));
    const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
    torch::manual_seed(0);  // the same x and the same model on every rank
    MLP2D mlp(mpu);
    mlp->to(device);

    // Rows over data ranks, the same on tensor ranks: what LiBai's dist.get_nd_sbp makes of
    // [split(0), broadcast].
    const torch::Tensor x =
        oslo::distribute(torch::rand({32, 1024}).to(device), mpu.mesh({"data", "tensor"}),
                         {oslo::sbp::split(0), oslo::sbp::broadcast});
    const torch::Tensor y = mlp(x);

    std::cout << c10::str("rank: ", world.rank(), ", tensor shape: ", oslo::local_tensor(y).sizes(),
                          "\n")
              << std::flush;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
