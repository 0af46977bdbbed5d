// TorchScript modules that Python saved: found with their layers and ties, trained as in Python on
// one rank and on several, saved and loaded under their names.
#include <gmock/gmock.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include "tests/exported_model_test/python_training.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::filesystem::path kScripts = OSLO_SOURCE_DIR "/tests/data/script";

torch::jit::Module script_of(const std::string& name) {
  return torch::jit::load((kScripts / (name + ".pt")).string());
}

/// Ranks that are threads share the generator that layers draw from when they are made.
std::shared_ptr<ScriptModule> lm() {
  return make_seeded(1, [] { return std::make_shared<ScriptModule>(script_of("lm")); });
}

TEST(ScriptModels, HaveTheModulesLayersAndTiesOfPython) {
  torch::jit::Module script = script_of("lm");
  const ScriptModule model(script);
  const ModelView view(model);
  std::vector<std::string> modules, buffers;
  for (const ModuleView& each : view.modules()) {
    if (each.path.find("h.") == std::string::npos) {
      modules.push_back(each.class_name + " " + each.path);
    }
  }
  for (const BufferView& each : view.buffers()) buffers.push_back(each.path);
  EXPECT_THAT(modules, ElementsAre("Lm ", "torch::nn::Embedding wte", "torch::nn::Embedding wpe",
                                   "ModuleList h", "LayerNorm ln_f", "torch::nn::Linear lm_head"));
  EXPECT_THAT(buffers, ElementsAre("gain", "calls"));
  // The tensors themselves, each once: an optimizer steps what it finds twice twice.
  const auto parameters = model.named_parameters();
  EXPECT_FALSE(parameters.contains("lm_head.weight"));
  EXPECT_EQ(parameters.size(), view.in_use().size());
  for (const auto& each : script.named_parameters()) {
    if (each.name == "lm_head.weight") continue;
    ASSERT_TRUE(parameters.contains(each.name)) << each.name;
    EXPECT_TRUE(parameters[each.name].is_same(each.value)) << each.name;
  }
}

TEST(ScriptModels, TrainAndEvaluateWithTheScript) {
  ScriptModule model(script_of("lm"));
  EXPECT_TRUE(model.is_training());
  model.eval();
  EXPECT_FALSE(model.script().attr("h").toModule().attr("0").toModule().is_training());
  const auto tokens = torch::zeros({2, 8}, torch::kLong);
  const auto once = model.forward(tokens).toTensor();
  EXPECT_TRUE(torch::equal(once, model.forward(tokens).toTensor()));
  model.train();
  EXPECT_FALSE(torch::equal(once, model.forward(tokens).toTensor()));  // dropout
  // The thread's other scripts are optimized as before.
  EXPECT_TRUE(torch::jit::getGraphExecutorOptimize());
}

/// Five steps on every rank, `direct` by calls of the script itself.
void expect_python(const Grid& grid, bool direct,
                   const std::function<void(const ParallelModel&)>& after = {}) {
  const PythonRun run("", "lm", kScripts);
  run_as_threads(grid.data * grid.tensor, [&](World world) {
    at::set_num_threads(1);
    InitializeOptions how;
    how.world = world;
    const Config config = Config::parse(parity::tensor_parallel(grid.tensor));
    torch::jit::Module script = script_of("lm");
    script.eval();  // ranks that are threads share a generator, and cannot draw alike
    std::optional<torch::jit::GraphOptimizerEnabledGuard> off;
    if (direct) off.emplace(false);
    const auto forward = [&](const at::Tensor& tokens) { return script.forward({tokens}); };
    const auto model = make_seeded(1, [&] { return std::make_shared<ScriptModule>(script); });
    how.example_inputs = [&] { model->forward(run.inputs(0).front()); };
    ParallelModel parallel =
        direct ? initialize(script, config, how) : initialize(model, config, how);
    torch::optim::AdamW optimizer = adam_of(*parallel.module());
    DistributedDataParallel<ScriptModule> ddp(parallel.module_as<ScriptModule>(),
                                              parallel.mpu().get_data_parallel_group());
    const auto own = [&](const at::Tensor& whole) {
      return whole.tensor_split(grid.data)[parallel.mpu().get_data_parallel_rank()];
    };
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      at::Tensor loss;
      const auto train = [&] {
        const at::Tensor tokens = own(run.inputs(step).front());
        const at::Tensor logits = (direct ? forward(tokens) : ddp.forward(tokens)).toTensor();
        loss = cross_entropy(logits, own(run.target(step)));
        loss.backward();
      };
      if (step + 1 == kSteps) {
        parallel.count(train);
      } else {
        train();
      }
      optimizer.step();
      if (grid.data > 1) continue;  // each replica has the loss of its own rows
      const double expected = run.loss(step).item<double>();
      EXPECT_NEAR(full_tensor(loss).item<double>(), expected, 1e-9 * expected) << "step " << step;
    }
    parallel.check();
    if (after) after(parallel);
    expect_evaluation(*parallel.module_as<ScriptModule>(), run, parity::kTrained);
    expect_state(ModelView(parallel.module()), run, parity::kTrained);
  });
}

void expect_twelve_sums(const ParallelModel& parallel) {
  EXPECT_THAT(parallel.plan().gathers, IsEmpty()) << parallel.plan().to_string();
  // Four a block, embedding, head, and two of the loss.
  EXPECT_EQ(calls_of(parallel, "all_reduce"), 12) << parallel.plan().to_string();
}

TEST(ScriptModels, TrainAsInPython) {
  expect_python({1, 1}, false, expect_silent);
  expect_python({1, 2}, false, expect_twelve_sums);
  expect_python({1, 3}, false, expect_twelve_sums);
  expect_python({2, 1}, false);
  expect_python({2, 2}, false);
}

TEST(ScriptModels, TrainByCallsOfTheScriptItself) {
  expect_python({1, 2}, true, expect_twelve_sums);
}

TEST(ScriptModels, AreSavedMergedAndLoadedUnderTheirNames) {
  const TemporaryDirectory folder;
  const ScriptModule plain(script_of("lm"));
  run_as_threads(2, [&](World world) {
    InitializeOptions how;
    how.world = world;
    const Config config = Config::parse(parity::tensor_parallel(2));
    const auto parallel = initialize(lm(), config, how);
    parallel.save_parallelized(folder / "parts");
    parallel.save_parallelized(folder / "merged", SaveOptions().merge_checkpoints(true));
    for (const char* name : {"parts", "merged"}) {
      const auto other = initialize(lm(), config, how);
      {
        const torch::NoGradGuard no_grad;
        for (at::Tensor& parameter : other.module()->parameters()) parameter.zero_();
      }
      other.from_parallelized(folder / name);
      const auto parameters = other.module()->named_parameters();
      for (const auto& each : plain.named_parameters()) {
        EXPECT_TRUE(torch::equal(full_tensor(parameters[each.key()]), each.value())) << each.key();
      }
    }
  });
  const StateDict merged = read_torch_bin(folder / "merged/pytorch_model.bin");
  for (const auto& each : torch::jit::Module(script_of("lm")).named_parameters()) {
    EXPECT_TRUE(merged.contains(each.name)) << each.name;  // a tied weight under both names
  }
  EXPECT_TRUE(merged.contains("gain"));
}

}  // namespace
}  // namespace oslo::test
