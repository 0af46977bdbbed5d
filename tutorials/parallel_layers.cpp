// A parallel model written by hand from the library's layers, in the manner of Megatron-LM.
//
//   oslo run -n 2 ./parallel_layers [--device cuda]
//
// trains it for 10 steps and prints the loss, which does not depend on the number of ranks, and
// this rank's part of the first weight:
//   step 0  loss ...
//   up.weight on rank 0: [128, 32] of [256, 32]
#include <oslo_cpp/oslo.h>

#include <iostream>

#include "device_option.h"

struct ClassifierImpl : torch::nn::Module {
  ClassifierImpl(std::int64_t vocabulary, std::int64_t width, const oslo::MPU& mpu)
      : tokens(register_module("tokens", oslo::nn::VocabParallelEmbedding(
                                             torch::nn::EmbeddingOptions(vocabulary, width), mpu))),
        up(register_module(
            "up", oslo::nn::ColumnParallelLinear(torch::nn::LinearOptions(width, 8 * width), mpu))),
        down(register_module(
            "down", oslo::nn::RowParallelLinear(torch::nn::LinearOptions(8 * width, 2), mpu))) {}

  // Token ids [batch, time] to the logits of two classes.
  torch::Tensor forward(const torch::Tensor& ids) {
    return down->forward(torch::relu(up->forward(tokens->forward(ids).mean(1))));
  }

  oslo::nn::VocabParallelEmbedding tokens;
  oslo::nn::ColumnParallelLinear up;
  oslo::nn::RowParallelLinear down;
};
TORCH_MODULE(Classifier);

static void train(const std::string& device_name) {
  const oslo::World world = oslo::World::from_environment();
  const torch::Device device = oslo::local_device(world, device_name);
  const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(world.size()));

  torch::manual_seed(0);
  Classifier model(1000, 32, mpu);
  model->to(device);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  const torch::Tensor ids = torch::randint(1000, {64, 8}).to(device);
  const torch::Tensor labels = ids.select(1, 0).remainder(2);

  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(model->forward(ids), labels);
    loss.backward();
    optimizer.step();
    if (world.rank() == 0) {
      std::cout << "step " << step << "  loss " << loss.item<float>() << std::endl;
    }
  }
  std::cout << c10::str("up.weight on rank ", world.rank(), ": ", model->up->weight.sizes(),
                        " of [256, 32]\n")
            << std::flush;
}

int main(int argc, char** argv) {
  try {
    train(device_option(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
