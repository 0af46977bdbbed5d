// Programs that need more than a step to be seen: a checkpoint, a grid of axes, processes.
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "tests/support/initialized.h"
#include "tests/support/parity.h"
#include "tests/support/pipeline_parity.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tool_process.h"

namespace gallery {
namespace {

namespace fs = std::filesystem;

struct FourLayersImpl : torch::nn::Module {
  FourLayersImpl() {
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(5, 5));
    register_module("layers", layers);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(FourLayers);

// G23, Megatron#7452: a checkpoint of four layers, saved by two replicas, is loaded over two
// stages: the second one gets the third and the fourth layer.
TEST(GalleryCheckpoint, G23) {
  const oslo::test::TemporaryDirectory folder;
  const FourLayers saved = oslo::test::make_seeded(3, [] { return FourLayers(); });
  oslo::run_as_threads(2, [&](oslo::World world) {
    auto model = oslo::test::make_seeded(3, [] { return FourLayers(); });
    const auto parallel = oslo::initialize(model, oslo::Config::parse(parity::tensor_parallel(1)),
                                           oslo::test::in(world));
    parallel.save_parallelized(folder / "ckpt");
  });
  oslo::run_as_threads(2, [&](oslo::World world) {
    auto model = oslo::test::make_seeded(4, [] { return FourLayers(); });
    const auto config = oslo::Config::parse(pipeline_parity::config_of({1, 1, 2}));
    const auto parallel = oslo::initialize(model, config, oslo::test::in(world));
    parallel.from_parallelized(folder / "ckpt");
    for (int i = 0; i < 4; ++i) {
      const std::string name = "layers." + std::to_string(i) + ".weight";
      const torch::Tensor mine = model->named_parameters()[name];
      ASSERT_EQ(oslo::is_here(mine), i / 2 == world.rank()) << name;
      if (!oslo::is_here(mine)) continue;
      EXPECT_TRUE(torch::equal(pipeline_parity::whole_here(mine), saved->named_parameters()[name]))
          << name;
    }
  });
}

struct TwoRowsImpl : torch::nn::Module {
  TwoRowsImpl() { two = register_parameter("two", torch::randn({2, 3})); }
  torch::Tensor forward(const torch::Tensor& x) { return (x.unsqueeze(1) * two).pow(2).sum(-1); }
  torch::Tensor two;
};
TORCH_MODULE(TwoRows);

// G26, pytorch#161368: two rows over two axes of 2 x 4; six of eight ranks have none.
TEST(GalleryAxes, G26) {
  const oslo::test::TemporaryDirectory folder;
  parity::Setup setup;
  setup.world = 8;
  setup.example = true;
  setup.config = R"j({"model_parallelism": {"enable": true},
                      "plan": {"two": "row: shard(0); column: shard(0)"}})j";
  setup.tweak = [](oslo::InitializeOptions& how) { how.axes = {{"row", 2}, {"column", 4}}; };
  std::atomic<int64_t> rows = 0;
  parity::expect_parity(
      setup, [] { return TwoRows(); },
      [](int) {
        return parity::Batch{torch::randn({6, 3}), torch::randn({6, 2})};
      },
      [](const torch::Tensor& out, const torch::Tensor& target) {
        return (out - target).pow(2).mean();
      },
      [&](const parity::Outcome& run) {
        rows += oslo::local_tensor(run.parallel.module()->named_parameters()["two"]).size(0);
        run.parallel.save_parallelized(folder / "ckpt");
        const torch::Tensor mine = run.parallel.module()->named_parameters()["two"];
        const torch::Tensor trained = oslo::full_tensor(mine.detach()).clone();
        {
          const torch::NoGradGuard no_grad;
          run.parallel.module()->named_parameters()["two"].zero_();
        }
        run.parallel.from_parallelized(folder / "ckpt");
        EXPECT_TRUE(torch::equal(oslo::full_tensor(mine.detach()), trained));
      });
  EXPECT_EQ(rows, 2);
}

struct DroppedImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) {
      x = x + torch::dropout(torch::gelu(layer->as<torch::nn::Linear>()->forward(x)), 0.2, true);
    }
    return x;
  }
  DroppedImpl() {
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(9, 9));
    register_module("layers", layers);
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Dropped);

// G10, pytorch#190758, OLMo-core#828: dropout in a block that is computed again. Ranks are
// processes, as each draws from its own generator.
TEST(GalleryChild, G10) {
  if (std::getenv("OSLO_GALLERY_CHILD") == nullptr) GTEST_SKIP() << "started by the test below";
  at::set_num_threads(1);
  const auto trained = [](Dropped& model) {
    torch::manual_seed(11);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    std::vector<torch::Tensor> losses;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const torch::Tensor loss = model->forward(torch::ones({4, 9})).pow(2).mean();
      loss.backward();
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return torch::stack(losses);
  };
  torch::manual_seed(5);
  Dropped plain;
  const torch::Tensor expected = trained(plain);
  torch::manual_seed(5);
  Dropped model;
  const auto config = oslo::Config::parse(
      R"({"train": {"dist": {"tensor_parallel_size": 2}, "activation_checkpoint": {"enabled": true}}})");
  try {
    oslo::initialize(model, config);
  } catch (const oslo::Error& error) {
    if (std::string(error.what()).find("is not there yet") == std::string::npos) throw;
    std::cerr << error.what() << "\n";
    return;
  }
  EXPECT_TRUE(torch::allclose(trained(model), expected, 1e-6, 1e-6));
  EXPECT_TRUE(torch::allclose(oslo::full_tensor(model->parameters()[0].detach()),
                              plain->parameters()[0].detach(), 1e-5, 1e-6));
}

TEST(GalleryProcesses, G10) {
  const std::string self = fs::read_symlink("/proc/self/exe");
  ::setenv("OSLO_GALLERY_CHILD", "1", 1);
  oslo::test::ToolProcess tool({"run", "-n", "2", "--", self, "--gtest_filter=GalleryChild.G10"});
  EXPECT_EQ(tool.finish(), 0) << tool.error();
  ::unsetenv("OSLO_GALLERY_CHILD");
  if (tool.error().find("is not there yet") != std::string::npos) GTEST_SKIP() << tool.error();
}

}  // namespace
}  // namespace gallery
