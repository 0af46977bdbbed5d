// Data parallelism alone: an ordinary module, trained by DistributedDataParallel.
//
//   oslo run -n 4 ./data_parallel
//
// (--device cuda: on a GPU for each rank) prints the loss of the whole batch at each step; it is
// the same for any number of ranks:
//   step 0  loss 1.19...
#include <oslo_cpp/oslo.h>

#include <iostream>

#include "device_option.h"

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return out->forward(torch::tanh(in->forward(x)));
  }

  torch::nn::Linear in{register_module("in", torch::nn::Linear(16, 64))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(64, 1))};
};
TORCH_MODULE(Net);

static void train(const std::string& device_name) {
  const oslo::World world = oslo::World::from_environment();
  const torch::Device device = oslo::local_device(world, device_name);
  const oslo::MPU mpu(world);  // no other parallelism: all ranks are data ranks
  const int ranks = mpu.get_data_parallel_world_size();

  torch::manual_seed(0);
  const torch::Tensor inputs = torch::randn({64, 16}).to(device);
  const torch::Tensor targets = inputs.sin().sum(1, /*keepdim=*/true);
  const torch::Tensor x = inputs.tensor_split(ranks)[mpu.get_data_parallel_rank()];
  const torch::Tensor y = targets.tensor_split(ranks)[mpu.get_data_parallel_rank()];

  Net net;
  net->to(device);
  oslo::DistributedDataParallel<Net> ddp(net, mpu.get_data_parallel_group());
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));

  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const auto x_half = x.tensor_split(2), y_half = y.tensor_split(2);
    torch::Tensor sum = torch::zeros({}, device);
    // Of parts of unequal size the mean of their means is not the batch's, the counted one is.
    const auto learn_from = [&](int half) {
      const torch::Tensor own =
          torch::mse_loss(ddp.forward(x_half[half]), y_half[half], at::Reduction::Sum);
      oslo::counted_mean(own, y_half[half].numel(), ddp).backward();
      sum += own.detach();
    };
    {
      const auto quiet = ddp.no_sync();
      learn_from(0);  // only adds up gradients
    }
    learn_from(1);  // also exchanges them
    optimizer.step();

    const torch::Tensor mean = mpu.data_group()->all_reduce(sum) / targets.numel();
    if (world.rank() == 0) {
      std::cout << "step " << step << "  loss " << mean.item<float>() << std::endl;
    }
  }
}

int main(int argc, char** argv) {
  try {
    train(device_option(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
