// Says by name where parameters go, instead of leaving it to the automatic plan.
//
//   oslo run -n 2 ./explicit_plan [--device cuda]
//
// prints the plan: one line a parameter, with its placement, global and local shape. The blocks'
// first layers are cut by columns, the second ones by rows, the head is left whole. Then it
// compares the model, operator by operator, with the same model on one device; exit 1 if they
// differ.
#include <oslo_cpp/oslo.h>

#include <iostream>

#include "device_option.h"

// An ordinary model for one device.
struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return x + shrink->forward(torch::gelu(widen->forward(norm->forward(x))));
  }

  torch::nn::LayerNorm norm{
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})))};
  torch::nn::Linear widen{register_module("widen", torch::nn::Linear(64, 256))};
  torch::nn::Linear shrink{register_module("shrink", torch::nn::Linear(256, 64))};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 2; ++i) blocks->push_back(Block());
  }

  torch::Tensor forward(torch::Tensor x) {
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head->forward(x);
  }

  torch::nn::ModuleList blocks{register_module("blocks", torch::nn::ModuleList())};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(64, 10))};
};
TORCH_MODULE(Net);

static Net seeded_net() {
  torch::manual_seed(0);
  return Net();
}

static bool run(const std::string& device_name) {
  const oslo::World world = oslo::World::from_environment();
  const torch::Device device = oslo::local_device(world, device_name);
  Net net = seeded_net();
  Net on_one_device = seeded_net();
  net->to(device);
  on_one_device->to(device);
  const torch::Tensor x = torch::randn({4, 64}).to(device);

  oslo::Config config = oslo::Config::parse(R"({
    "model_parallelism": {"enable": true},
    "plan": {
      "blocks.*.widen": "column",
      "blocks.*.shrink": "row",
      "head": "replicate"
    }
  })");
  config.set(c10::str("model_parallelism.tensor_parallel_size=", world.size()));
  oslo::InitializeOptions how;
  how.world = world;
  oslo::ParallelModel parallel = oslo::initialize(net, config, how);

  const oslo::Verification verification = oslo::verify(parallel, on_one_device, x);
  const std::string plan = parallel.plan().to_string();
  if (world.rank() == 0) std::cout << plan << "\n" << verification.to_string() << std::flush;
  return verification.equal();
}

int main(int argc, char** argv) {
  try {
    return run(device_option(argc, argv)) ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
