// A traced module, whose graph has sizes, factories and in-place sums over edges as operators,
// beside the same script on one device.
#include <gtest/gtest.h>
#include <torch/script.h>

#include "oslo_cpp/oslo.h"
#include "tests/support/parity.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

std::shared_ptr<ScriptModule> graph_net() {
  return make_seeded(1, [] {
    return std::make_shared<ScriptModule>(
        torch::jit::load(OSLO_SOURCE_DIR "/tests/data/script/graph.pt"));
  });
}

/// Of another number of nodes and edges than it was traced with.
at::Tensor nodes(int step) {
  return torch::sin(torch::arange(55, torch::kDouble).view({11, 5}) * (step + 1.3));
}
at::Tensor edges() {
  const at::Tensor i = torch::arange(29);
  return torch::stack({i.mul(5).remainder(11), i.mul(7).add(2).remainder(11)});
}

void train(ScriptModule& model, torch::optim::Optimizer& optimizer) {
  const at::Tensor kinds = torch::arange(11).mul(4).remainder(3);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor scores = model.forward(nodes(step), edges()).toTensor();
    torch::nn::functional::cross_entropy(scores, kinds).backward();
    optimizer.step();
  }
}

TEST(TracedScript, AGraphNetTrainsAsOnOneDevice) {
  const auto plain = graph_net();
  torch::optim::SGD plain_optimizer(plain->parameters(),
                                    torch::optim::SGDOptions(0.1).momentum(0.9));
  {
    const torch::jit::GraphOptimizerEnabledGuard off(false);
    train(*plain, plain_optimizer);
  }
  for (const int size : {1, 2, 3}) {
    run_as_threads(size, [&](World world) {
      at::set_num_threads(1);
      const auto model = graph_net();
      InitializeOptions how;
      how.world = world;
      how.example_inputs = [&] { model->forward(nodes(0), edges()); };
      const ParallelModel parallel =
          initialize(model, Config::parse(parity::tensor_parallel(size)), how);
      EXPECT_EQ(is_placed(model->named_parameters()["up.weight"]), size > 1);
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      train(*model, optimizer);
      for (const auto& each : plain->named_parameters()) {
        const at::Tensor found = full_tensor(model->named_parameters()[each.key()]);
        EXPECT_TRUE(torch::allclose(found, each.value(), 1e-10, 1e-12))
            << each.key() << " at tensor " << size;
      }
    });
  }
}

}  // namespace
}  // namespace oslo::test
