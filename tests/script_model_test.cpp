// Another kind of model behind the same view: a TorchScript module is found, planned by pattern,
// cut, trained, saved and merged under its own names, without a line about TorchScript in the
// library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "checkpoint/formats/safetensors.h"
#include "checkpoint/load_state.h"
#include "checkpoint/parallel_checkpoint.h"
#include "mpu/mpu.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/plan/apply_plan.h"
#include "parallelizers/plan/automatic_plan.h"
#include "parallelizers/plan/explicit_plan.h"
#include "parallelizers/plan/structural_plan.h"
#include "tests/support/error_of.h"
#include "tests/support/script_view.h"
#include "tests/support/temporary_directory.h"

namespace oslo {
namespace {

using test::error_of;
using test::ScriptWalk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;
using Script = torch::jit::Module;

constexpr int64_t kRows = 11, kWidth = 5, kInner = 7;
constexpr int kRanks = 3;

/// Values that depend on the sizes only: the same on every rank, which share a generator.
Tensor drawn(at::IntArrayRef sizes) {
  const int64_t count = c10::multiply_integers(sizes);
  return torch::arange(count, torch::kDouble)
      .mul(1.7)
      .add(double(count))
      .sin()
      .view(sizes)
      .mul(0.5);
}

Script layer_of(const char* kind, const Tensor& weight, const Tensor& bias = {}) {
  Script layer(kind);
  layer.register_parameter("weight", weight, /*is_buffer=*/false);
  if (bias.defined()) layer.register_parameter("bias", bias, /*is_buffer=*/false);
  const bool linear = std::string(kind) == "Linear";
  layer.define(!linear ? "def forward(self, x):\n  return torch.embedding(self.weight, x)\n"
               : bias.defined()
                   ? "def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n"
                   : "def forward(self, x):\n  return torch.linear(x, self.weight)\n");
  return layer;
}

Script make_script() {
  const auto parameter = [](at::IntArrayRef sizes) { return drawn(sizes).set_requires_grad(true); };
  Script model("Net");
  const Tensor table = parameter({kRows, kWidth});
  model.register_module("wte", layer_of("Embedding", table));
  Script block("Block");
  block.register_module("fc", layer_of("Linear", parameter({kInner, kWidth}), parameter({kInner})));
  block.register_module("proj",
                        layer_of("Linear", parameter({kWidth, kInner}), parameter({kWidth})));
  block.define(
      "def forward(self, x):\n"
      "  return x + self.proj.forward(torch.gelu(self.fc.forward(x)))\n");
  model.register_module("block", block);
  model.register_parameter("mix", parameter({kWidth, kWidth}), /*is_buffer=*/false);
  model.register_parameter("scale", drawn({kWidth}), /*is_buffer=*/true);
  model.register_module("head", layer_of("Linear", table));  // tied
  model.define(
      "def forward(self, ids):\n"
      "  x = self.block.forward(self.wte.forward(ids))\n"
      "  return self.head.forward(torch.matmul(x, self.mix) * self.scale)\n");
  return model;
}

Tensor ids() {
  return torch::arange(6).mul(5).remainder(kRows).view({2, 3});
}

Tensor forward(Script& model) {
  return model.forward({ids()}).toTensor();
}

/// The plan that a user wrote, checked and carried out.
void cut(const ModelView& model, const MPU& mpu, const PlanPatterns& patterns) {
  std::vector<LayerPlan> layers = plannable_layers(model);
  plan_by_patterns(layers, patterns);
  check_asked(layers);
  follow_ties(layers);
  check_cuttable(layers, model);
  cut_parameters(layers, mpu.tensor_mesh());
  ModelView shown = model;
  rewrite_tree(layers, shown);
}

const PlanPatterns kPlan = {
    {"wte", "vocab"}, {"block.fc", "column"}, {"*.proj", "row"}, {"mix", "shard(1)"}};

Tensor named(const Script& model, const std::string& name) {
  const ModelView view = ScriptWalk::view_of(model);
  for (const ParameterView& parameter : view.parameters()) {
    if (parameter.path == name) return parameter.registered;
  }
  for (const BufferView& buffer : view.buffers()) {
    if (buffer.path == name) return buffer.tensor;
  }
  return {};
}

const std::vector<std::string> kParameters = {
    "mix",           "wte.weight",        "block.fc.weight",
    "block.fc.bias", "block.proj.weight", "block.proj.bias",
    "head.weight"};

TEST(ScriptModel, IsFoundWithItsLayersAndTies) {
  const Script model = make_script();
  const ModelView view = ScriptWalk::view_of(model);
  std::vector<std::string> names, in_use, layers;
  for (const ParameterView& parameter : view.parameters()) names.push_back(parameter.path);
  for (const NamedTensor& parameter : view.in_use()) in_use.push_back(parameter.name);
  for (const LayerPlan& layer : plannable_layers(view)) layers.push_back(layer.path);
  EXPECT_EQ(names, kParameters);
  EXPECT_EQ(in_use, std::vector<std::string>(kParameters.begin(), kParameters.end() - 1));
  EXPECT_THAT(layers, ElementsAre("mix", "wte", "block.fc", "block.proj", "head"));
  ASSERT_EQ(view.buffers().size(), 1u);
  EXPECT_EQ(view.buffers()[0].path, "scale");
}

TEST(ScriptModel, IsPlannedByStructureAndByPattern) {
  const Script model = make_script();
  std::vector<LayerPlan> layers = plannable_layers(ScriptWalk::view_of(model));
  plan_by_structure(layers);
  follow_ties(layers);
  std::vector<std::string> styles;
  for (const LayerPlan& layer : layers) styles.push_back(layer.style.name());
  EXPECT_THAT(styles, ElementsAre("replicate", "vocab", "column", "row", "column"));
  EXPECT_THAT(error_of([&] {
                plan_by_patterns(layers, {{"block.fcc", "column"}});
              }),
              HasSubstr("the nearest path is \"block.fc\""));
}

TEST(ScriptModel, TrainsCutAsOnOneDevice) {
  run_as_threads(kRanks, [](World world) {
    // TorchScript's own derivatives read sizes of local tensors; without them autograd takes over.
    const torch::jit::GraphOptimizerEnabledGuard off(false);
    const MPU mpu(world, MpuOptions().tensor_parallel_size(kRanks));
    Script plain = make_script(), model = make_script();
    cut(ScriptWalk::view_of(model), mpu, kPlan);
    EXPECT_EQ(local_tensor(named(model, "block.fc.weight")).size(0), world.rank() == 0 ? 3 : 2);
    for (int step = 0; step < 2; ++step) {
      const Tensor expected = forward(plain), y = forward(model);
      EXPECT_TRUE(torch::allclose(full_tensor(y), expected));
      expected.pow(2).sum().backward();
      y.pow(2).sum().backward();
      const torch::NoGradGuard no_grad;
      for (const std::string& name : kParameters) {
        if (name == "head.weight") continue;  // the table again
        Tensor own = named(model, name), whole = named(plain, name);
        EXPECT_TRUE(torch::allclose(full_tensor(own.grad()), whole.grad())) << name;
        own.sub_(own.grad(), 0.01);
        whole.sub_(whole.grad(), 0.01);
        own.mutable_grad().reset();
        whole.mutable_grad().reset();
        EXPECT_TRUE(torch::allclose(full_tensor(own), whole)) << name;
      }
    }
  });
}

TEST(ScriptModel, IsPlannedByItsExample) {
  const Script plain = make_script();
  Script model = make_script();
  const ModelView view = ScriptWalk::view_of(model);
  std::vector<LayerPlan> layers = plannable_layers(view);
  plan_by_structure(layers);
  follow_ties(layers);
  FirstWrites writes;
  const auto search = plan_automatically(
      layers, view, kRanks, [&] { forward(model); }, writes);
  EXPECT_EQ(search.found.gathers, 0);
  EXPECT_GT(search.found.bytes, 0);
  for (const std::string& name : kParameters) {  // a dry run leaves no trace
    EXPECT_TRUE(torch::equal(named(model, name), named(plain, name))) << name;
  }
}

TEST(ScriptModel, IsSavedMergedAndLoadedUnderItsNames) {
  const test::TemporaryDirectory folder;
  const Script plain = make_script();
  run_as_threads(kRanks, [&](World world) {
    const MPU mpu(world, MpuOptions().tensor_parallel_size(kRanks));
    const Script model = make_script();
    const ModelView view = ScriptWalk::view_of(model);
    cut(view, mpu, kPlan);
    save_parallelized(view, mpu, folder / "parts");
    save_parallelized(view, mpu, folder / "merged", SaveOptions().merge_checkpoints(true));

    const Script other = make_script();
    const ModelView other_view = ScriptWalk::view_of(other);
    {
      const torch::NoGradGuard no_grad;
      for (const NamedTensor& parameter : other_view.in_use()) Tensor(parameter.tensor).zero_();
    }
    cut(other_view, mpu, kPlan);
    load_parallelized(other_view, mpu, folder / "parts");
    for (const std::string& name : kParameters) {
      EXPECT_TRUE(torch::equal(full_tensor(named(other, name)), named(plain, name))) << name;
    }
  });
  const StateDict merged = read_safetensors(folder / "merged" / "model.safetensors");
  EXPECT_EQ(merged.size(), kParameters.size());  // less the tie, and the buffer
  for (const std::string& name : kParameters) {
    if (name == "head.weight") continue;
    ASSERT_TRUE(merged.contains(name)) << name;
    EXPECT_TRUE(torch::equal(*merged.find(name), named(plain, name))) << name;
  }
  EXPECT_TRUE(torch::equal(*merged.find("scale"), named(plain, "scale")));

  const Script loaded = make_script();
  const ModelView view = ScriptWalk::view_of(loaded);
  {
    const torch::NoGradGuard no_grad;
    for (const NamedTensor& parameter : view.in_use()) Tensor(parameter.tensor).zero_();
  }
  load_state(view, folder / "merged");
  for (const std::string& name : kParameters) {
    EXPECT_TRUE(torch::equal(named(loaded, name), named(plain, name))) << name;
  }
}

}  // namespace
}  // namespace oslo
