// What load_exported makes of a file: Python's tree, with LibTorch's layers in it, inputs and
// outputs, training and evaluation.
#include <gmock/gmock.h>

#include <sstream>

#include "parallelizers/modules/model_view.h"
#include "tests/exported_model_test/python_run.h"
#include "tests/support/error_of.h"
#include "tests/support/parity.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using torch::Tensor;

std::shared_ptr<ExportedModule> loaded(const std::string& name) {
  return make_seeded(1, [&] { return load_exported(kExported / (name + ".pt2")); });
}

/// "class path" of every module.
std::vector<std::string> tree_of(const std::shared_ptr<ExportedModule>& model) {
  std::vector<std::string> found;
  const ModelView view(model);
  for (const ModuleView& each : view.modules()) {
    found.push_back(each.class_name + " " + each.path);
  }
  return found;
}

template <typename Layer>
Layer& layer_at(ExportedModule& model, const std::string& path) {
  const auto modules = model.named_modules();
  auto* layer = modules[path]->as<Layer>();
  if (layer == nullptr) throw std::runtime_error(path + " is another layer");
  return *layer;
}

TEST(ExportedModules, AreThoseOfPythonInItsOrder) {
  EXPECT_THAT(tree_of(loaded("mlp")), ElementsAre("Mlp ", "torch::nn::Linear up", "Dropout drop",
                                                  "torch::nn::Linear down"));
  // Python calls no ModuleList, nor the layer whose weight MultiheadAttention takes itself.
  const auto tree = tree_of(loaded("vit"));
  ASSERT_GE(tree.size(), 7u);
  EXPECT_THAT(
      std::vector<std::string>(tree.begin(), tree.begin() + 7),
      ElementsAre("Vit ", "torch::nn::Conv2d patches", "Module layers", "EncoderLayer layers.0",
                  "torch::nn::LayerNorm layers.0.norm1", "MultiheadAttention layers.0.attention",
                  "torch::nn::Linear layers.0.attention.out_proj"));
}

TEST(ExportedModules, LayersHaveTheOptionsOfTheFile) {
  const auto conv = loaded("conv");
  const auto& grouped = layer_at<torch::nn::Conv2dImpl>(*conv, "features.4");
  EXPECT_EQ(grouped.options.in_channels(), 6);
  EXPECT_EQ(grouped.options.out_channels(), 9);
  EXPECT_EQ(grouped.options.groups(), 3);
  EXPECT_EQ(*grouped.options.stride(), (std::array<int64_t, 2>{2, 2}));
  EXPECT_EQ(grouped.weight.sizes(), (std::vector<int64_t>{9, 2, 3, 3}));
  EXPECT_FALSE(layer_at<torch::nn::Conv2dImpl>(*conv, "features.0").bias.defined());
  const auto& norm = layer_at<torch::nn::BatchNorm2dImpl>(*conv, "features.5");
  EXPECT_EQ(norm.options.eps(), 1e-4);
  EXPECT_EQ(norm.options.momentum(), 0.3);
  EXPECT_TRUE(norm.running_mean.is_same(conv->named_buffers()["features.5.running_mean"]));
  EXPECT_EQ(layer_at<torch::nn::GroupNormImpl>(*conv, "features.8").options.num_groups(), 5);
  const auto& linear = layer_at<torch::nn::LinearImpl>(*conv, "head");
  EXPECT_TRUE(linear.weight.is_same(conv->named_parameters()["head.weight"]));
  EXPECT_EQ(linear.options.in_features(), 10);
  std::ostringstream text;
  text << *conv;
  EXPECT_THAT(text.str(), AllOf(HasSubstr("ConvNet"), HasSubstr("torch::nn::Conv2d(6, 9")));
  // A layer alone computes what it did in Python.
  const Tensor x = torch::ones({2, 10}, torch::kDouble);
  EXPECT_TRUE(torch::equal(layer_at<torch::nn::LinearImpl>(*conv, "head").forward(x),
                           torch::nn::functional::linear(x, linear.weight, linear.bias)));
}

TEST(ExportedModules, ATiedWeightIsOneTensorAndOneParameter) {
  const auto model = loaded("gpt2");
  const auto& table = layer_at<torch::nn::EmbeddingImpl>(*model, "wte");
  const auto& head = layer_at<torch::nn::LinearImpl>(*model, "lm_head");
  EXPECT_TRUE(head.weight.is_same(table.weight));
  EXPECT_TRUE(model->named_parameters().contains("wte.weight"));
  EXPECT_FALSE(model->named_parameters().contains("lm_head.weight"));  // an optimizer steps it once
  // Everybody here knows it by both names.
  std::vector<std::string> names;
  const ModelView view(model);
  for (const ParameterView& each : view.parameters()) {
    if (each.in_use().is_same(table.weight)) names.push_back(each.path);
  }
  EXPECT_THAT(names, ElementsAre("wte.weight", "lm_head.weight"));
}

TEST(ExportedModules, AParameterOfTwoNamesAndNoLayerIsKnownByBoth) {
  const auto model = loaded("twice");
  EXPECT_TRUE(model->named_parameters().contains("up"));
  EXPECT_FALSE(model->named_parameters().contains("down"));
  std::vector<std::string> names;
  const ModelView view(model);
  for (const ParameterView& each : view.parameters()) names.push_back(each.path);
  EXPECT_THAT(names, UnorderedElementsAre("norm.weight", "norm.bias", "mix.weight", "mix.bias",
                                          "up", "down", "gain", "again.gain"));
  // A checkpoint has them all, for Python's load_state_dict.
  InitializeOptions how;
  how.world = World::alone();
  const TemporaryDirectory folder;
  initialize(model, {}, how)
      .save_parallelized(folder / "merged", SaveOptions().merge_checkpoints(true));
  const StateDict saved = read_torch_bin(folder / "merged/pytorch_model.bin");
  EXPECT_TRUE(saved.contains("down"));
  EXPECT_TRUE(saved.at("again.gain").is_alias_of(saved.at("gain")));
}

TEST(ExportedModules, BuffersAreThereWhetherPythonSavesThemOrNot) {
  const auto model = loaded("gpt2");
  const Tensor mask = model->named_buffers()["mask"];
  EXPECT_TRUE(torch::equal(mask, torch::ones({8, 8}, torch::kBool).tril()));
  EXPECT_FALSE(mask.requires_grad());
  const auto saved = [](const std::shared_ptr<ExportedModule>& of) {
    std::vector<std::string> names;
    const ModelView view(of);
    for (const BufferView& each : view.buffers()) names.push_back(each.path);
    return names;
  };
  EXPECT_THAT(saved(model), ElementsAre());
  EXPECT_THAT(saved(loaded("mlp")), ElementsAre("calls"));
  const auto mlp = loaded("mlp");
  EXPECT_EQ(mlp->named_buffers()["calls"].item<int64_t>(), 0);
  EXPECT_TRUE(mlp->named_parameters()["gain"].requires_grad());
}

TEST(ExportedModules, LoadingDrawsNoRandomNumbers) {
  make_seeded(4, [] {
    const Tensor before = torch::rand({1});
    at::manual_seed(4);
    load_exported(kExported / "conv.pt2");
    EXPECT_TRUE(torch::equal(torch::rand({1}), before));
    return 0;
  });
}

TEST(ExportedModules, InputsAndOutputsAreFlatAndNamed) {
  const auto model = loaded("mlp");
  model->eval();
  EXPECT_THAT(model->input_names(), ElementsAre("batch_x", "batch_bias"));
  EXPECT_THAT(model->output_names(), ElementsAre("logits", "hidden.0", "hidden.1", "nothing"));
  const auto options = torch::kDouble;
  const auto output = model->forward(torch::ones({4, 7}, options), torch::ones({7}, options));
  const auto& parts = output.toTupleRef().elements();
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[0].toTensor().sizes(), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(parts[2].toInt(), 4);  // x.size(0)
  EXPECT_TRUE(parts[3].isNone());
  EXPECT_THAT(loaded("conv")->output_names(), ElementsAre("output"));
}

TEST(ExportedModules, ExamplesAreOfTheSizesOfTheTrace) {
  const auto examples = loaded("mlp")->example_inputs();
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(examples[0].toTensor().sizes(), (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(examples[1].toTensor().scalar_type(), torch::kDouble);
}

TEST(ExportedModules, InputsThatTheProgramWasNotExportedForAreRefused) {
  const auto model = loaded("gpt2");
  const auto error_for = [&](const Tensor& tokens) {
    return error_of([&] { model->forward({tokens}); });
  };
  model->forward({torch::zeros({1, 6}, torch::kLong)});
  EXPECT_THAT(error_for(torch::zeros({2, 5}, torch::kLong)),
              AllOf(HasSubstr("input tokens is Long [2, 5]"), HasSubstr("from 0 to 64, 6]"),
                    HasSubstr("dynamic_shapes")));
  EXPECT_THAT(error_for(torch::zeros({65, 6}, torch::kLong)), HasSubstr("to 64"));
  EXPECT_THAT(error_for(torch::zeros({2, 6})), HasSubstr("input tokens is Float"));
  EXPECT_THAT(error_of([&] { model->forward(std::vector<c10::IValue>{}); }),
              HasSubstr("takes 1 inputs (tokens), and got 0"));
}

TEST(ExportedModules, OneFileTrainsAndEvaluates) {
  const auto model = loaded("conv");
  EXPECT_TRUE(model->is_training());
  const Tensor x = PythonRun("conv").inputs(0).front();
  const Tensor seen = model->named_buffers()["features.1.num_batches_tracked"];
  const Tensor mean = model->named_buffers()["features.1.running_mean"];
  model->eval();
  const Tensor before = mean.clone();
  const Tensor whole = model->forward({x}).toTensor();
  const Tensor alone = model->forward({x.slice(0, 0, 1)}).toTensor();
  EXPECT_TRUE(torch::allclose(whole.slice(0, 0, 1), alone));  // of running statistics
  EXPECT_TRUE(torch::equal(mean, before));
  EXPECT_EQ(seen.item<int64_t>(), 0);
  model->train();
  EXPECT_FALSE(torch::allclose(model->forward({x}).toTensor(), whole));
  EXPECT_FALSE(torch::equal(mean, before));
  EXPECT_EQ(seen.item<int64_t>(), 1);
  // Each module for itself, as in Python: one norm is frozen, the other goes on.
  model->named_modules()["features.1"]->eval();
  model->forward({x});
  EXPECT_EQ(seen.item<int64_t>(), 1);
  EXPECT_EQ(model->named_buffers()["features.5.num_batches_tracked"].item<int64_t>(), 2);
}

TEST(ExportedModules, AProgramOfEvaluationDoesNotTrain) {
  const auto model = loaded("evaluated");
  EXPECT_FALSE(model->is_training());
  model->eval();
  EXPECT_THAT(error_of([&] { model->train(); }), HasSubstr("model.train() in Python"));
}

TEST(ExportedModules, ACloneIsAModelOfItsOwn) {
  const auto model = loaded("conv");
  model->named_modules()["features.1"]->eval();
  {
    const torch::NoGradGuard no_grad;
    model->named_parameters()["head.weight"].mul_(2);
    model->named_buffers()["features.5.running_mean"].add_(1);
  }
  model->named_parameters()["head.bias"].set_requires_grad(false);
  model->to(torch::kFloat);
  const auto copy =
      make_seeded(1, [&] { return std::dynamic_pointer_cast<ExportedModule>(model->clone()); });
  ASSERT_NE(copy, nullptr);
  EXPECT_FALSE(copy->named_modules()["features.1"]->is_training());
  EXPECT_TRUE(copy->named_modules()["features.5"]->is_training());
  EXPECT_FALSE(copy->named_parameters()["head.bias"].requires_grad());
  const Tensor x = PythonRun("conv").inputs(0).front().to(torch::kFloat);
  copy->eval();
  model->eval();
  const Tensor expected = model->forward(x).toTensor();
  EXPECT_TRUE(torch::equal(copy->forward(x).toTensor(), expected));
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : copy->parameters()) parameter.zero_();
  EXPECT_TRUE(torch::equal(model->forward(x).toTensor(), expected));
  EXPECT_EQ(copy->forward(x).toTensor().abs().sum().item<float>(), 0);  // its members, too
}

TEST(ExportedModules, ACloneOfAnotherOrAParallelModelIsRefused) {
  const TemporaryDirectory folder;
  const auto path = folder / "model.pt2";
  std::filesystem::copy_file(kExported / "mlp.pt2", path);
  const auto model = make_seeded(1, [&] { return load_exported(path); });
  std::filesystem::copy_file(kExported / "vit.pt2", path,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(error_of([&] { model->clone(); }),
              AllOf(HasSubstr("model.pt2 has"), HasSubstr("it is another file now")));
  std::filesystem::remove(path);
  EXPECT_THAT(error_of([&] { model->clone(); }), HasSubstr("model.pt2"));
  InitializeOptions how;
  how.world = World::alone();
  initialize(model, Config::parse(parity::tensor_parallel(1)), how);
  EXPECT_THAT(error_of([&] { model->clone(); }), HasSubstr("clone it before initialize"));
}

TEST(ExportedModules, AnOperatorThatFailsIsNamedWithItsNode) {
  const auto model = loaded("gpt2");
  try {
    model->forward({torch::full({1, 6}, 37, torch::kLong)});  // one word more than there are
    FAIL() << "an index beyond the table was taken";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("node embedding (torch.ops.aten.embedding.default)"));
  }
}

}  // namespace
}  // namespace oslo::test
