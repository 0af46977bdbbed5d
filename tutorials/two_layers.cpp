// Colossal-AI's smallest pipeline: a model of two linear layers, the first on one rank, the second
// on the other.
//
//   oslo run -n 2 -- ./two_layers
//
// (--device cuda: on a GPU for each rank) prints what each rank holds, the losses, which are those
// of ./two_layers alone, and how many of an evaluation's outputs are right:
//   rank 0: first.weight first.bias
//   rank 1: second.weight second.bias
//   step 0  loss 1.3...
//   correct: 24 of 24
#include <oslo_cpp/oslo.h>

#include <iostream>
#include <string>

#include "device_option.h"

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return second->forward(torch::relu(first->forward(x)));
  }

  torch::nn::Linear first{register_module("first", torch::nn::Linear(8, 32))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(32, 4))};
};
TORCH_MODULE(Net);

static void train(const std::string& device_name) {
  const oslo::World world = oslo::World::from_environment();
  const torch::Device device = oslo::local_device(world, device_name);
  oslo::Config config = oslo::Config::parse(R"({"parallel": {"pipeline": {"size": 2}}})");
  if (world.size() == 1) config.set("parallel.pipeline.size=1");  // the same program alone

  torch::manual_seed(0);
  const torch::Tensor x = torch::randn({24, 8});
  const torch::Tensor y = x.slice(1, 0, 4).argmax(1);
  Net net;
  net->to(device);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5));
  oslo::InitializeOptions how;
  how.world = world;
  how.example_inputs = [&] { net->forward(torch::zeros({4, 8}, device)); };
  const oslo::ParallelModel parallel = oslo::initialize(net, config, how);

  std::string held;
  for (const auto& parameter : net->named_parameters()) {
    if (oslo::is_here(parameter.value())) held += " " + parameter.key();
  }
  for (int rank = 0; rank < world.size(); ++rank) {
    world.barrier();
    if (rank == world.rank()) std::cout << "rank " << rank << ":" << held << std::endl;
  }

  // Colossal-AI's form: forward and criterion apart, so that outputs can be had.
  const auto forward = [&](const auto& micro) { return net->forward(micro[0]); };
  const auto criterion = [](const torch::Tensor& output, const auto& micro) {
    return torch::nn::functional::cross_entropy(output, micro[1]);
  };
  oslo::PipelineSchedule schedule(parallel, oslo::PipelineOptions().num_microbatches(4));
  const std::vector<torch::Tensor> batch{x.to(device), y.to(device)};
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    const auto result = schedule.forward_backward_step(batch, forward, criterion);
    optimizer.step();
    if (world.rank() == 0 && step % 10 == 0) {
      std::cout << "step " << step << "  loss " << result.loss.item<float>() << std::endl;
    }
  }

  const auto result = schedule.forward_backward_step(
      batch, forward, criterion, oslo::StepOptions().forward_only(true).return_outputs(true));
  world.barrier();
  if (result.outputs.defined()) {  // on the last stage
    const auto correct = (result.outputs.argmax(1) == result.labels).sum().item<int64_t>();
    std::cout << "correct: " << correct << " of " << result.labels.size(0) << std::endl;
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
