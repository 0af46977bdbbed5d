// LiBai's two examples of parallel layers, picked by the number of ranks.
//
//   oslo run -n 2 ./tensor_parallel
//       a column-parallel Linear(2048, 32768) on 2 tensor ranks, x [32, 2048]:
//       rank 0 of 2: x [32, 2048] -> [32, 16384]
//   oslo run -n 4 ./tensor_parallel
//       an MLP 1024-16384-1024 on 2 data x 2 tensor ranks, a batch of 32:
//       rank 0 of 4: x [16, 1024] -> [16, 1024]
//   ./tensor_parallel
//       the first example on one rank: [32, 2048] -> [32, 32768]
// With --device cuda each rank computes on a GPU.
#include <oslo_cpp/oslo.h>

#include <iostream>

#include "device_option.h"

// Cut by columns, then by rows: the hidden values stay apart, one all-reduce ends the forward.
struct MlpImpl : torch::nn::Module {
  MlpImpl(std::int64_t width, std::int64_t hidden, const oslo::MPU& mpu)
      : up(register_module(
            "up", oslo::nn::Linear(oslo::nn::LinearOptions(width, hidden).parallel("col"), mpu))),
        down(register_module(
            "down",
            oslo::nn::Linear(oslo::nn::LinearOptions(hidden, width).parallel("row"), mpu))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return down->forward(torch::gelu(up->forward(x)));
  }

  oslo::nn::Linear up, down;
};
TORCH_MODULE(Mlp);

static void report(const oslo::World& world, const torch::Tensor& x, const torch::Tensor& y) {
  std::cout << c10::str("rank ", world.rank(), " of ", world.size(), ": x ", x.sizes(), " -> ",
                        oslo::local_tensor(y).sizes(), "\n")
            << std::flush;
}

static void linear_example(const oslo::World& world, const torch::Device& device) {
  const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(world.size()));
  oslo::nn::Linear linear(oslo::nn::LinearOptions(2048, 32768).parallel("col"), mpu);
  linear->to(device);
  const torch::Tensor x = torch::randn({32, 2048}).to(device);
  report(world, x, linear->forward(x));
}

static void mlp_example(const oslo::World& world, const torch::Device& device) {
  const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
  Mlp mlp(1024, 16384, mpu);
  mlp->to(device);
  const torch::Tensor batch = torch::randn({32, 1024}).to(device);
  const torch::Tensor x =
      batch.chunk(mpu.get_data_parallel_world_size())[mpu.get_data_parallel_rank()];
  report(world, x, mlp->forward(x));
}

int main(int argc, char** argv) {
  try {
    torch::NoGradGuard no_grad;
    torch::manual_seed(0);  // the same x on every rank
    const oslo::World world = oslo::World::from_environment();
    if (world.size() > 4 || world.size() == 3) {
      throw oslo::Error(c10::str("the examples are for 1, 2 or 4 ranks, not ", world.size()));
    }
    const torch::Device device = oslo::local_device(world, device_option(argc, argv));
    world.size() == 4 ? mlp_example(world, device) : linear_example(world, device);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
