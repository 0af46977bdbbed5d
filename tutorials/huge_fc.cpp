// LiBai's huge_fc_example.py: a fully connected layer for many classes, its output features cut
// over two ranks.
//
//   oslo run -n 2 -- ./huge_fc
//   rank: 0, tensor shape: [32, 16384]
//   rank: 1, tensor shape: [32, 16384]
#include <oslo_cpp/oslo.h>

#include <iostream>

#include "device_option.h"

struct HugeFCImpl : torch::nn::Module {
  explicit HugeFCImpl(const oslo::MPU& mpu)
      : fc(register_module(
            "fc", oslo::nn::Linear(oslo::nn::LinearOptions(2048, 32768).parallel("col"), mpu))) {}

  torch::Tensor forward(const torch::Tensor& x) { return fc(x); }

  oslo::nn::Linear fc;
};
TORCH_MODULE(HugeFC);

int main(int argc, char** argv) {
  try {
    const oslo::World world = oslo::World::from_environment();
    const torch::Device device = oslo::local_device(world, device_option(argc, argv));
    const oslo::MPU mpu(
        world, oslo::MpuOptions().data_parallel_size(1).tensor_parallel_size(world.size()));
    torch::manual_seed(0);  // the same x and the same layer on every rank
    HugeFC huge_fc(mpu);
    huge_fc->to(device);

    // Ranks 0 and 1 each have all of x: LiBai's sbp.broadcast over placement("cuda", ranks=[0, 1]).
    const torch::Tensor x = oslo::distribute(torch::rand({32, 2048}).to(device),
                                             mpu.mesh({"tensor"}), {oslo::sbp::broadcast});
    const torch::Tensor y = huge_fc(x);

    std::cout << c10::str("rank: ", world.rank(), ", tensor shape: ", oslo::local_tensor(y).sizes(),
                          "\n")
              << std::flush;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
