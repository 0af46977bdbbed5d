// Random numbers of a model on pipeline stages: every rank draws what one device draws, for dropout
// and for what the program draws itself; where a rank has several stages, what a run of the same
// kind at pipeline size 1 draws. In processes, as ranks that are threads share a generator.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/pipeline_parity.h"
#include "tests/support/tool_process.h"

namespace oslo::test {
namespace {

using pipeline_parity::Tensors;
using torch::Tensor;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 4; ++i) {
      layers.push_back(register_module(c10::str("layer", i), torch::nn::Linear(5, 5)));
    }
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) {
      x = torch::dropout(torch::tanh(layer(x)), 0.4, is_training());
      x = x * 2;
      torch::dropout_(x, 0.2, is_training());
    }
    // On no stage in particular: every rank draws it.
    return x * torch::rand_like(x) + torch::rand({5}) * (1 + torch::randn({}).item<double>());
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Net);

constexpr int kMicroBatches = 4;

/// What a rank prints where it is as on one device.
constexpr const char* kSame = "as on one device";

TEST(PipelineRandomChild, DrawsAsOneDevice) {
  const char* kind = std::getenv("OSLO_TEST_SCHEDULE");
  if (kind == nullptr) GTEST_SKIP() << "started by the test below, as a rank";
  const auto run = [&](Net& net, const std::function<double(const Tensors&)>& step) {
    std::vector<double> drawn;
    for (int i = 0; i < 2; ++i) {
      drawn.push_back(step({torch::randn({8, 5}), torch::randn({8, 5})}));
      drawn.push_back(torch::rand({}).item<double>());
      net->zero_grad();
    }
    return drawn;
  };
  const auto loss = [](Net& net, const Tensors& micro) {
    return torch::mse_loss(net->forward(micro[0]), micro[1]);
  };
  const auto scheduled = [&](Net& net, const InitializeOptions& how, const std::string& config) {
    const ParallelModel parallel = initialize(net, Config::parse(config), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(kMicroBatches));
    return run(net, [&](const Tensors& batch) {
      return schedule
          .forward_backward_step(batch, [&](const Tensors& micro) { return loss(net, micro); })
          .loss.item<double>();
    });
  };
  torch::manual_seed(3);
  Net plain;
  InitializeOptions alone;
  alone.world = World::alone();
  const bool several = pipeline::default_chunks(kind) > 1;
  const auto expected =
      several ? scheduled(plain, alone, pipeline_parity::config_of({1, 1, 1}, kind))
              : run(plain, [&](const Tensors& batch) {
                  double sum = 0;
                  for (const Tensors& micro : pipeline_parity::divided(batch, kMicroBatches)) {
                    const Tensor part = loss(plain, micro) / kMicroBatches;
                    part.backward();
                    sum += part.item<double>();
                  }
                  return sum;
                });
  torch::manual_seed(3);
  Net net;
  const auto actual = scheduled(net, {}, std::getenv("OSLO_TEST_CONFIG"));
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 1e-5) << i;
  std::printf("%s\n", kSame);
}

/// The rows of what goes from layer to layer are cut, too.
constexpr const char* kSequencePlan = R"(, "plan": {"layer0": "column", "layer1": "row scatter=-2",
    "layer2": "column", "layer3": "row scatter=-2"})";

struct RandomCase {
  int tensor, pipeline;
  const char* kind;
  const char* plan = "";
};

TEST(PipelineRandom, DropoutIsThatOfOneDevice) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<RandomCase> cases{
      {2, 2, "1f1b"}, {2, 1, "1f1b", kSequencePlan}, {2, 2, "gpipe", kSequencePlan}, {2, 2, "zbv"}};
  const std::vector<std::string> kinds = pipeline::schedule_kinds();
  for (const std::string& kind : kinds) cases.push_back({1, 2, kind.c_str()});
  for (const auto& [tensor, pipeline, kind, plan] : cases) {
    std::string config = pipeline_parity::config_of({1, tensor, pipeline}, kind);
    config.insert(config.size() - 1, plan);
    SCOPED_TRACE(kind + config);
    ::setenv("OSLO_TEST_SCHEDULE", kind, 1);
    ::setenv("OSLO_TEST_CONFIG", config.c_str(), 1);
    ToolProcess tool({"run", "-n", std::to_string(tensor * pipeline), "--", self,
                      "--gtest_filter=PipelineRandomChild.*"});
    ::unsetenv("OSLO_TEST_SCHEDULE");
    ::unsetenv("OSLO_TEST_CONFIG");
    const int code = tool.finish();
    const std::string out = tool.output();
    EXPECT_EQ(code, 0) << out << tool.error();
    int ranks = 0;
    for (size_t at = out.find(kSame); at != std::string::npos; at = out.find(kSame, at + 1))
      ++ranks;
    EXPECT_EQ(ranks, tensor * pipeline) << out;
  }
}

}  // namespace
}  // namespace oslo::test
