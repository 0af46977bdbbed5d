// A model that no rank has room for, in processes whose address space is limited; and the first
// example of LiBai, of 82 GB, planned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <cstdlib>
#include <filesystem>
#include <new>

#include "parallelizers/placement/layout/value.h"
#include "tests/support/address_space.h"
#include "tests/support/tool_process.h"

namespace oslo::test {
namespace {

using torch::Tensor;

constexpr int kBlocks = 16;
constexpr int64_t kFeatures = 2048;
constexpr int64_t kModelBytes = 2 * kBlocks * kFeatures * kFeatures * 4;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(bool drawn_again) {
    const auto options = torch::nn::LinearOptions(kFeatures, kFeatures).bias(false);
    up = register_module("up", torch::nn::Linear(options));
    down = register_module("down", torch::nn::Linear(options));
    if (!drawn_again) return;
    torch::nn::init::normal_(up->weight, 0, 0.02);
    torch::nn::init::normal_(down->weight, 0, 0.02);
  }
  Tensor forward(const Tensor& x) { return down(torch::tanh(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct LargeImpl : torch::nn::Module {
  LargeImpl() {
    register_module("h", h);
    for (int i = 0; i < kBlocks; ++i) h->push_back(Block(i % 3 == 0));
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *h) x = x + block->as<Block>()->forward(x);
    return x;
  }
  torch::nn::ModuleList h;
};
TORCH_MODULE(Large);

constexpr const char* kTrained = "constructed, cut and trained";

TEST(DeferredChild, TrainsAModelThatNoRankHasRoomFor) {
  const char* config = std::getenv("OSLO_TEST_CONFIG");
  if (config == nullptr) GTEST_SKIP() << "started by the test below, as a rank";
  InitializeOptions how;
  how.world = World::from_environment();
  {  // LibTorch's threads and buffers are there before the limit is.
    torch::nn::Linear small(64, 64);
    small->forward(torch::ones({4, 64})).sum().backward();
  }
  // Own parts, the 64 MB that are promised, and room for the transport of a second group.
  const int64_t room = kModelBytes / how.world.size() + (int64_t{64} << 20) + (int64_t{40} << 20);
  ASSERT_LT(room, kModelBytes);
  limit_address_space(address_space() + room);
  EXPECT_ANY_THROW(Large());
  torch::manual_seed(3);
  Large model = [] {
    const DeferredInit guard;
    return Large();
  }();
  const ParallelModel parallel = initialize(model, Config::parse(config), how);
  limit_address_space(RLIM_INFINITY);

  torch::manual_seed(3);
  Large plain;
  for (const auto& item : plain->named_parameters()) {
    const Tensor parameter = model->named_parameters()[item.key()];
    if (!is_here(parameter)) continue;
    const LayoutPtr of = layout(parameter);
    const Tensor expected = of ? local_part(item.value(), *of) : item.value();
    ASSERT_TRUE(torch::equal(local_tensor(parameter.detach()), expected)) << item.key();
  }
  const Tensor x = torch::ones({2, kFeatures});
  const auto loss_of = [](Large& net, const Tensor& input) {
    return net->forward(input).square().sum();
  };
  torch::optim::SGD optimizer(model->parameters(), 1e-3);
  PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(1));
  const auto step = [&] {
    optimizer.zero_grad();
    const double loss =
        schedule
            .forward_backward_step(
                {x}, [&](const std::vector<Tensor>& micro) { return loss_of(model, micro[0]); })
            .loss.item<double>();
    optimizer.step();
    return loss;
  };
  torch::optim::SGD plain_optimizer(plain->parameters(), 1e-3);
  for (int i = 0; i < 2; ++i) {
    plain_optimizer.zero_grad();
    const Tensor expected = loss_of(plain, x);
    expected.backward();
    plain_optimizer.step();
    ASSERT_NEAR(step() / expected.item<double>(), 1, 1e-4);
  }
  std::printf("%s\n", kTrained);
}

TEST(DeferredProcess, RanksNeedTheirPartsAnd64Megabytes) {
  OSLO_LIMITS_ADDRESS_SPACE();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  ::setenv("MALLOC_ARENA_MAX", "1", 1);  // each would reserve 64 MB of address space
  ::setenv("OMP_NUM_THREADS", "1", 1);
  for (const auto& [tensor, pipeline] : {std::pair{2, 1}, std::pair{4, 1}, std::pair{2, 2}}) {
    const std::string config =
        c10::str(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )", tensor,
                 R"(, "pipeline_parallel_size": )", pipeline,
                 R"(}, "plan": {"h.*.up": "column", "h.*.down": "row"}})");
    SCOPED_TRACE(config);
    ::setenv("OSLO_TEST_CONFIG", config.c_str(), 1);
    ToolProcess tool({"run", "--malloc-defaults", "-n", std::to_string(tensor * pipeline), "--",
                      self, "--gtest_filter=DeferredChild.*"});
    ::unsetenv("OSLO_TEST_CONFIG");
    EXPECT_EQ(tool.finish(), 0) << tool.output() << tool.error();
    const std::string out = tool.output();
    int ranks = 0;
    for (size_t at = out.find(kTrained); at != std::string::npos; at = out.find(kTrained, at + 1)) {
      ++ranks;
    }
    EXPECT_EQ(ranks, tensor * pipeline) << out;
  }
}

TEST(DeferredPlanChild, PlansLibaisFirstExample) {
  if (std::getenv("OSLO_PLAN_RANKS") == nullptr) GTEST_SKIP() << "started by the test below";
  torch::nn::Linear layer = [] {
    const DeferredInit guard;
    return torch::nn::Linear(2048, 10'000'000);
  }();
  limit_address_space(address_space() + (int64_t{1} << 30));
  InitializeOptions how;
  how.example_inputs = [&] { layer->forward(torch::ones({32, 2048})); };
  initialize(layer,
             Config::parse(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 8}})"),
             how);
}

TEST(DeferredProcess, EightRanksOf82GigabytesArePlanned) {
  OSLO_LIMITS_ADDRESS_SPACE();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  ToolProcess tool({"plan", "-n", "8", "--", self, "--gtest_filter=DeferredPlanChild.*"});
  EXPECT_EQ(tool.finish(), 0) << tool.error();
  EXPECT_THAT(tool.output(), testing::HasSubstr("1250000")) << tool.error();
}

}  // namespace
}  // namespace oslo::test
