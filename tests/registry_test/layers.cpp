// Modules by the names that a config has for them.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include "oslo_cpp/registry/module_registry.h"
#include "oslo_cpp/registry/pipeline_model.h"
#include "oslo_cpp/registry/torch_layers.h"
#include "tests/support/error_of.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace registered {

/// Made of an entry's arguments.
struct ScaledImpl : torch::nn::Module {
  explicit ScaledImpl(const nlohmann::json& arguments) : by(arguments.at("by")) {}
  torch::Tensor forward(const torch::Tensor& x) { return x * by; }
  double by;
};
TORCH_MODULE(Scaled);

/// Made of nothing, without a holder.
struct Plain : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x + 1; }
};

/// Constructed from a number: nothing that a config could give.
struct CountedImpl : torch::nn::Module {
  explicit CountedImpl(int64_t count = 3) : count(count) {}
  torch::Tensor forward(const torch::Tensor& x) { return x * count; }
  int64_t count;
};
TORCH_MODULE(Counted);

struct Overloaded : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x; }
  torch::Tensor forward(const torch::Tensor& x, double by) { return x * by; }
};

struct MlpImpl : ModelFromConfig {
  explicit MlpImpl(const nlohmann::json& arguments) {
    const int64_t width = arguments.at("width");
    layers_cfg = {{{"type", "Linear"}, {"in_features", 3}, {"out_features", width}},
                  {{"type", "Tanh"}},
                  {{"type", "Scaled"}, {"by", 2}},
                  {{"type", "Linear"}, {"in_features", width}, {"out_features", 2}}};
  }
  void init_weights() override { initialized = true; }
  bool initialized = false;
};
TORCH_MODULE(Mlp);

struct OwnForwardImpl : MlpImpl {
  using MlpImpl::MlpImpl;
  torch::Tensor forward(const torch::Tensor& x) { return MlpImpl::forward(x) * 2; }
};
TORCH_MODULE(OwnForward);

OSLO_REGISTER_MODULE(Scaled);
OSLO_REGISTER_MODULE(Plain);
OSLO_REGISTER_MODULE(oslo::test::registered::Counted);
OSLO_REGISTER_MODULE(Overloaded);
OSLO_REGISTER_MODULE(Mlp);
OSLO_REGISTER_MODULE(OwnForward);
OSLO_REGISTER_MODULE(Mlp);  // as two source files that include one header do

namespace elsewhere {
struct Twice : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x; }
};
OSLO_REGISTER_MODULE(Twice);
}  // namespace elsewhere
struct Twice : elsewhere::Twice {};
OSLO_REGISTER_MODULE(Twice);

}  // namespace registered

namespace {

using testing::HasSubstr;
using torch::Tensor;

torch::nn::AnyModule layer(const char* text) {
  return build_layer(nlohmann::json::parse(text));
}

Tensor numbers(c10::IntArrayRef sizes) {
  return torch::sin(torch::arange(c10::multiply_integers(sizes), torch::kFloat)).view(sizes);
}

TEST(Registry, MakesClassesOfTheProgram) {
  const Tensor x = numbers({4, 3});
  EXPECT_TRUE(torch::equal(layer(R"({"type": "Scaled", "by": 1.5})").forward(x), x * 1.5));
  EXPECT_TRUE(torch::equal(layer(R"({"type": "Plain"})").forward(x), x + 1));
  EXPECT_TRUE(torch::equal(layer(R"({"type": "Counted"})").forward(x), x * 3));
  const auto mlp =
      std::dynamic_pointer_cast<registered::MlpImpl>(build_model({{"type", "Mlp"}, {"width", 5}}));
  ASSERT_NE(mlp, nullptr);
  EXPECT_TRUE(mlp->initialized);
  EXPECT_EQ(mlp->forward(x).sizes(), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(mlp->named_parameters()[0].key(), "layers.0.weight");
}

TEST(Registry, RefusesWhatItCannotMake) {
  const auto of = [](const char* text) { return error_of([&] { layer(text); }); };
  EXPECT_THAT(of(R"({"type": "Lienar", "in_features": 3})"),
              testing::AllOf(HasSubstr("no class is called 'Lienar'"),
                             HasSubstr("the nearest name is 'Linear'"),
                             HasSubstr("OSLO_REGISTER_MODULE(Lienar)")));
  EXPECT_THAT(of(R"({"type": "Wobble"})"),
              HasSubstr("no class is called 'Wobble'; a class of your own needs"));
  EXPECT_THAT(of(R"({"in_features": 3})"), HasSubstr("an object with the name of a class"));
  EXPECT_THAT(of(R"({"type": "Plain", "by": 3})"), HasSubstr("the argument 'by' goes nowhere"));
  EXPECT_THAT(of(R"({"type": "Counted", "count": 3})"),
              HasSubstr("the argument 'count' goes nowhere"));
  EXPECT_THAT(of(R"({"type": "Overloaded"})"), HasSubstr("give it one forward"));
  EXPECT_NE(build_model({{"type", "Overloaded"}}), nullptr);
  EXPECT_THAT(of(R"({"type": "Twice"})"),
              testing::AllOf(HasSubstr("two classes are registered as 'Twice'"),
                             HasSubstr("elsewhere::Twice")));
}

/// A layer of an entry, and the same made by hand.
template <typename Layer>
void expect_layer(const char* entry, const Layer& by_hand, const Tensor& x) {
  SCOPED_TRACE(entry);
  const auto made = make_seeded(5, [&] { return layer(entry); });
  auto expected = make_seeded(5, by_hand);
  EXPECT_EQ(made.ptr()->name(), expected->name());
  const auto once = [&](auto&& forward) { return make_seeded(6, [&] { return forward(x); }); };
  EXPECT_TRUE(
      torch::equal(once([&](const Tensor& t) { return torch::nn::AnyModule(made).forward(t); }),
                   once([&](const Tensor& t) { return expected->forward(t); })));
}

TEST(Registry, LayersAreLibTorchs) {
  namespace nn = torch::nn;
  const Tensor rows = numbers({4, 6}), pictures = numbers({2, 6, 9, 8});
  expect_layer(R"({"type": "Linear", "in_features": 6, "out_features": 5, "bias": false})",
               [] { return nn::Linear(nn::LinearOptions(6, 5).bias(false)); }, rows);
  expect_layer(
      R"({"type": "Embedding", "num_embeddings": 7, "embedding_dim": 3, "padding_idx": 1})",
      [] { return nn::Embedding(nn::EmbeddingOptions(7, 3).padding_idx(1)); },
      torch::tensor({1, 6}));
  expect_layer(
      R"({"type": "Conv2d", "in_channels": 6, "out_channels": 4, "kernel_size": [3, 2],
          "stride": 2, "padding": [1, 0], "dilation": 2, "groups": 2, "bias": false})",
      [] {
        return nn::Conv2d(nn::Conv2dOptions(6, 4, {3, 2})
                              .stride(2)
                              .padding({1, 0})
                              .dilation(2)
                              .groups(2)
                              .bias(false));
      },
      pictures);
  expect_layer(R"({"type": "Conv1d", "in_channels": 4, "out_channels": 3, "kernel_size": 3})",
               [] { return nn::Conv1d(nn::Conv1dOptions(4, 3, 3)); }, rows);
  expect_layer(R"({"type": "BatchNorm2d", "num_features": 6, "eps": 0.1})",
               [] { return nn::BatchNorm2d(nn::BatchNorm2dOptions(6).eps(0.1)); }, pictures);
  expect_layer(R"({"type": "LayerNorm", "normalized_shape": [9, 8], "eps": 0.1})",
               [] {
                 return nn::LayerNorm(nn::LayerNormOptions({9, 8}).eps(0.1));
               },
               pictures);
  expect_layer(R"({"type": "GroupNorm", "num_groups": 3, "num_channels": 6})",
               [] { return nn::GroupNorm(3, 6); }, pictures);
  expect_layer(R"({"type": "Dropout", "p": 0.3})", [] { return nn::Dropout(0.3); }, rows);
  expect_layer(R"({"type": "ReLU"})", [] { return nn::ReLU(); }, rows);
  expect_layer(R"({"type": "LeakyReLU", "negative_slope": 0.3})",
               [] { return nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.3)); }, rows);
  expect_layer(R"({"type": "GELU", "approximate": "tanh"})",
               [] { return nn::GELU(nn::GELUOptions().approximate("tanh")); }, rows);
  expect_layer(R"({"type": "SiLU"})", [] { return nn::SiLU(); }, rows);
  expect_layer(R"({"type": "Softmax", "dim": 0})", [] { return nn::Softmax(0); }, rows);
  expect_layer(R"({"type": "Flatten", "start_dim": 2})",
               [] { return nn::Flatten(nn::FlattenOptions().start_dim(2)); }, pictures);
  expect_layer(R"({"type": "MaxPool2d", "kernel_size": 3, "stride": [2, 1], "padding": 1})",
               [] {
                 return nn::MaxPool2d(nn::MaxPool2dOptions(3).stride({2, 1}).padding(1));
               },
               pictures);
  expect_layer(R"({"type": "AvgPool2d", "kernel_size": 2})",
               [] { return nn::AvgPool2d(nn::AvgPool2dOptions(2)); }, pictures);
  expect_layer(R"({"type": "AdaptiveAvgPool2d", "output_size": [2, 3]})",
               [] {
                 return nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions({2, 3}));
               },
               pictures);
}

TEST(Registry, ArgumentsOfALayerAreChecked) {
  const auto of = [](const char* text) { return error_of([&] { layer(text); }); };
  EXPECT_THAT(of(R"({"type": "Linear", "in_features": 3})"),
              HasSubstr("'out_features' is missing"));
  EXPECT_THAT(of(R"({"type": "Linear", "in_features": 3, "out_feature": 4, "out_features": 4})"),
              HasSubstr("no argument 'out_feature'; the nearest one is 'out_features'"));
  EXPECT_THAT(of(R"({"type": "Linear", "in_features": 3, "depth": 4, "out_features": 4})"),
              HasSubstr("no argument 'depth'; its arguments are in_features, out_features, bias"));
  EXPECT_THAT(of(R"({"type": "Linear", "in_features": "3", "out_features": 4})"),
              HasSubstr("'in_features' is \"3\"; set it to an integer"));
  EXPECT_THAT(of(R"({"type": "Conv2d", "in_channels": 1, "out_channels": 1, "kernel_size": [1]})"),
              HasSubstr("a list of 2 integers"));
  EXPECT_THAT(of(R"({"type": "Tanh", "dim": 1})"), HasSubstr("'dim'; leave it out"));
}

TEST(Registry, AModelBuildsItsLayersOnce) {
  registered::Mlp mlp(nlohmann::json{{"width", 4}});
  EXPECT_THAT(error_of([&] { mlp->forward(numbers({1, 3})); }), HasSubstr("call build_from_cfg()"));
  mlp->build_from_cfg();
  EXPECT_THAT(error_of([&] { mlp->build_from_cfg(); }), HasSubstr("call it once"));
  mlp->layers_cfg = nlohmann::json::array();
  EXPECT_THAT(error_of([&] { build_layers(mlp->layers_cfg); }), HasSubstr("make it a list"));
}

TEST(Registry, APipelineIsOfAModelsLayers) {
  EXPECT_THAT(error_of([] {
                build_pipeline_model_from_cfg({{"type", "Linear"}});
              }),
              HasSubstr("is missing"));
  EXPECT_THAT(error_of([] {
                build_pipeline_model_from_cfg({{"type", "Plain"}});
              }),
              HasSubstr("'Plain' is no oslo::ModelFromConfig"));
  EXPECT_THAT(error_of([] {
                build_pipeline_model_from_cfg({{"type", "OwnForward"}, {"width", 2}});
              }),
              HasSubstr("has a forward of its own"));
  EXPECT_THAT(error_of([] {
                build_pipeline_model_from_cfg({{"type", "Mlp"}, {"width", 2}}, 0);
              }),
              HasSubstr("at least 1 stage"));
  EXPECT_THAT(error_of([] { build_pipeline_model(torch::nn::Sequential()); }),
              HasSubstr("no layers"));
  torch::nn::Sequential chain(torch::nn::Linear(3, 4), torch::nn::Tanh());
  const PipelineModel model = build_pipeline_model(chain, 2);
  EXPECT_EQ(model->num_model_chunks(), 2);
  EXPECT_TRUE(model->parameters()[0].is_same(chain->parameters()[0]));
  const auto copy = std::dynamic_pointer_cast<PipelineModelImpl>(model->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->num_model_chunks(), 2);
  const Tensor x = numbers({2, 3});
  EXPECT_TRUE(torch::equal(copy->forward(x), chain->forward(x)));
}

}  // namespace
}  // namespace oslo::test
