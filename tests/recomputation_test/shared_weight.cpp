// Acceptance K4 with K21: one weight twice, a norm, attention, dropout, over data ranks and stages
// whose halves of backward are apart: one recomputation for both, and hooks fire once.
#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "parallelizers/memory/recompute/layer_segments.h"
#include "tests/recomputation_test/counted_norms.h"
#include "tests/support/initialized.h"
#include "tests/support/pipeline_parity.h"
#include "tests/support/tool_process.h"

namespace oslo::test::shared_weight {
namespace {

using pipeline_parity::Tensors;
using torch::Tensor;

constexpr int kBlocks = 4;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(double dropout) : rate(dropout) {
    w = register_parameter("w", torch::randn({6, 6}) * 0.3);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
  }
  Tensor forward(const Tensor& x) {
    const Tensor h = norm->forward(x.matmul(w).matmul(w));
    const Tensor heads = h.view({h.size(0), -1, 2, 3}).transpose(1, 2);
    const Tensor mixed = at::scaled_dot_product_attention(heads, heads, heads);
    return x + torch::dropout(mixed.transpose(1, 2).reshape(x.sizes()), rate, is_training());
  }
  const double rate;
  Tensor w;
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Block);

struct SharedImpl : torch::nn::Module {
  explicit SharedImpl(double dropout) {
    for (int i = 0; i < kBlocks; ++i) h->push_back(Block(dropout));
    last = register_parameter("last", torch::ones({6}));
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *h) x = block->as<Block>()->forward(x);
    return x * last;  // ends the last block's segment
  }
  torch::nn::ModuleList h = register_module("h", torch::nn::ModuleList());
  Tensor last;
};
TORCH_MODULE(Shared);

const pipeline_parity::Grid kGrid{2, 1, 2};
constexpr int kMicroBatches = 4;

std::string config_of(bool again) {
  std::string config = pipeline_parity::config_of(kGrid, "zero_bubble");
  config.pop_back();
  return config + (again ? R"(, "activation_checkpoint": {"enabled": true}})" : "}");
}

int cut_segments(const ParallelModel& parallel) {
  const auto context = context_of(parallel.mpu().tensor_mesh());
  int cut = 0;
  for (const SegmentReport& each :
       dynamic_cast<const LayerSegments&>(*context->observer).report()) {
    EXPECT_EQ(each.not_cut, "") << each.name;
    cut += each.used ? 1 : 0;
  }
  return cut;
}

TEST(SharedWeight, TrainsAsOnOneDeviceAndHooksFireOnce) {
  pipeline_parity::Trial trial;
  trial.grid = kGrid;
  trial.kind = "zero_bubble";
  trial.micro_batches = kMicroBatches;
  trial.config = config_of(/*again=*/true);
  std::atomic<int> fired = 0;
  pipeline_parity::expect_parity(
      trial, [] { return Shared(/*dropout=*/0); },
      [](int) {
        return Tensors{torch::randn({8, 4, 6}, torch::kDouble)};
      },
      [&](Shared& model, const Tensors& micro) {
        const Tensor out = model->forward(micro[0]);
        if (is_placed(out) && is_here(out) && out.requires_grad()) {
          out.register_hook([&](const Tensor& gradient) {
            ++fired;
            return gradient;
          });
        }
        return out.pow(2).mean();
      },
      [](const pipeline_parity::Outcome& outcome) {
        EXPECT_EQ(cut_segments(outcome.parallel), kBlocks);
      });
  EXPECT_EQ(fired, 3 * kMicroBatches * kGrid.data);  // 3 steps
}

struct Steps {
  std::map<std::string, Tensor> weights;  ///< of this rank
  int norms = 0;                          ///< that the last step computes on it
};

/// With dropout, whose masks are each data rank's own.
Steps train(bool again, const World& world) {
  at::set_num_threads(1);
  Steps steps;
  auto model = make_seeded(3, [] { return Shared(/*dropout=*/0.2); });
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  const auto parallel = initialize(model, Config::parse(config_of(again)), in(world));
  PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(kMicroBatches));
  torch::manual_seed(17 + parallel.mpu().get_data_parallel_rank());
  for (int step = 0; step < 3; ++step) {
    const Tensor input = torch::randn({8, 4, 6});
    optimizer.zero_grad();
    const CountedNorms norms;
    schedule.forward_backward_step(
        {input}, [&](const Tensors& micro) { return model->forward(micro[0]).pow(2).mean(); });
    steps.norms = norms.made();
    optimizer.step();
  }
  for (const auto& item : model->named_parameters()) {
    if (is_here(item.value())) {
      steps.weights[item.key()] = local_tensor(item.value()).detach().clone();
    }
  }
  return steps;
}

/// What a rank prints.
constexpr const char* kSame = "the same by one recomputation";

TEST(SharedWeightChild, Trains) {
  if (std::getenv("OSLO_TEST_JOB") == nullptr) GTEST_SKIP() << "started by the test below";
  const World world = World::from_environment();
  const Steps plain = train(false, world), again = train(true, world);
  ASSERT_EQ(again.weights.size(), plain.weights.size());
  for (const auto& [name, weight] : plain.weights) {
    EXPECT_TRUE(again.weights.at(name).equal(weight)) << name;
  }
  // Each half of backward on its own would make it three times as many.
  EXPECT_EQ(plain.norms, kBlocks / kGrid.pipeline * kMicroBatches);
  EXPECT_EQ(again.norms, 2 * plain.norms);
  if (!HasFailure()) std::cout << kSame << std::endl;
}

/// In processes, as ranks that are threads draw from one generator.
TEST(SharedWeight, DropoutIsTheSameAndBothHalvesUseOneRecomputation) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  ::setenv("OSLO_TEST_JOB", "train", 1);
  ToolProcess tool({"run", "-n", std::to_string(kGrid.size()), "--", self,
                    "--gtest_filter=SharedWeightChild.Trains"});
  ::unsetenv("OSLO_TEST_JOB");
  EXPECT_EQ(tool.finish(), 0) << tool.output() << tool.error();
  int same = 0;
  for (const std::string& line : lines_of(tool.output())) {
    same += line.find(kSame) == std::string::npos ? 0 : 1;
  }
  EXPECT_EQ(same, kGrid.size());
}

}  // namespace
}  // namespace oslo::test::shared_weight
