// Says by name where parameters go, instead of leaving it to the automatic plan.
//
//   oslo run -n 2 ./explicit_plan
//
// prints the plan: one line a parameter, with its placement, global and local shape. The blocks'
// first layers are cut by columns, the second ones by rows, the head is left whole.
#include <oslo_cpp/oslo.h>
#include <torch/nn.h>

#include <iostream>

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

static void run() {
  const oslo::World world = oslo::World::from_environment();
  torch::manual_seed(0);
  Net net;
  const torch::Tensor x = torch::randn({4, 64});
  const torch::Tensor expected = net->forward(x).detach();

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

  const torch::Tensor y = oslo::full_tensor(net->forward(x)).detach();
  const std::string plan = parallel.plan().to_string();
  if (world.rank() == 0) {
    std::cout << plan << "\nlargest difference to the model before: "
              << (y - expected).abs().max().item<float>() << std::endl;
  }
}

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
