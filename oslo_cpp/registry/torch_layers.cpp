#include "oslo_cpp/registry/torch_layers.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pooling.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "oslo_cpp/registry/layer_arguments.h"

namespace oslo {
namespace {

namespace nn = torch::nn;
using Make = nn::AnyModule (*)(LayerArguments& of);
using Sizes = std::vector<int64_t>;

nn::AnyModule linear(LayerArguments& of) {
  const int64_t in = of.integer("in_features"), out = of.integer("out_features");
  return nn::AnyModule(nn::Linear(nn::LinearOptions(in, out).bias(of.flag("bias", true))));
}

nn::AnyModule embedding(LayerArguments& of) {
  const int64_t count = of.integer("num_embeddings"), width = of.integer("embedding_dim");
  nn::EmbeddingOptions options(count, width);
  const int64_t none = -count - 1;
  const int64_t padding = of.integer("padding_idx", none);
  if (padding != none) options.padding_idx(padding);
  return nn::AnyModule(nn::Embedding(options));
}

template <typename Layer, size_t N>
nn::AnyModule convolution(LayerArguments& of) {
  const auto expanding = [](const Sizes& sizes) {
    return torch::ExpandingArray<N>(c10::IntArrayRef(sizes));
  };
  const int64_t in = of.integer("in_channels"), out = of.integer("out_channels");
  nn::ConvOptions<N> options(in, out, expanding(of.integers("kernel_size", N)));
  options.stride(expanding(of.integers("stride", N, Sizes(N, 1))));
  options.padding(expanding(of.integers("padding", N, Sizes(N, 0))));
  options.dilation(expanding(of.integers("dilation", N, Sizes(N, 1))));
  options.groups(of.integer("groups", 1)).bias(of.flag("bias", true));
  return nn::AnyModule(Layer(options));
}

template <typename Layer>
nn::AnyModule batch_norm(LayerArguments& of) {
  nn::BatchNormOptions options(of.integer("num_features"));
  options.eps(of.number("eps", 1e-5)).momentum(of.number("momentum", 0.1));
  options.affine(of.flag("affine", true));
  options.track_running_stats(of.flag("track_running_stats", true));
  return nn::AnyModule(Layer(options));
}

nn::AnyModule layer_norm(LayerArguments& of) {
  nn::LayerNormOptions options(of.integers("normalized_shape", 0));
  options.eps(of.number("eps", 1e-5));
  options.elementwise_affine(of.flag("elementwise_affine", true));
  return nn::AnyModule(nn::LayerNorm(options));
}

nn::AnyModule group_norm(LayerArguments& of) {
  const int64_t groups = of.integer("num_groups"), channels = of.integer("num_channels");
  nn::GroupNormOptions options(groups, channels);
  options.eps(of.number("eps", 1e-5)).affine(of.flag("affine", true));
  return nn::AnyModule(nn::GroupNorm(options));
}

nn::AnyModule dropout(LayerArguments& of) {
  const double p = of.number("p", 0.5);
  return nn::AnyModule(nn::Dropout(nn::DropoutOptions(p).inplace(of.flag("inplace", false))));
}

nn::AnyModule relu(LayerArguments& of) {
  return nn::AnyModule(nn::ReLU(nn::ReLUOptions(of.flag("inplace", false))));
}

nn::AnyModule leaky_relu(LayerArguments& of) {
  return nn::AnyModule(
      nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(of.number("negative_slope", 0.01))));
}

nn::AnyModule gelu(LayerArguments& of) {
  return nn::AnyModule(nn::GELU(nn::GELUOptions().approximate(of.word("approximate", "none"))));
}

template <typename Layer>
nn::AnyModule of_nothing(LayerArguments& /*of*/) {
  return nn::AnyModule(Layer());
}

template <typename Layer>
nn::AnyModule along(LayerArguments& of) {
  return nn::AnyModule(Layer(of.integer("dim")));
}

nn::AnyModule flatten(LayerArguments& of) {
  const int64_t start = of.integer("start_dim", 1), end = of.integer("end_dim", -1);
  return nn::AnyModule(nn::Flatten(nn::FlattenOptions().start_dim(start).end_dim(end)));
}

template <typename Layer, typename Options>
nn::AnyModule pool(LayerArguments& of) {
  const Sizes kernel = of.integers("kernel_size", 2);
  Options options{torch::ExpandingArray<2>(c10::IntArrayRef(kernel))};
  options.stride(torch::ExpandingArray<2>(c10::IntArrayRef(of.integers("stride", 2, kernel))));
  options.padding(
      torch::ExpandingArray<2>(c10::IntArrayRef(of.integers("padding", 2, Sizes{0, 0}))));
  return nn::AnyModule(Layer(options));
}

nn::AnyModule adaptive_pool(LayerArguments& of) {
  const Sizes size = of.integers("output_size", 2);
  return nn::AnyModule(nn::AdaptiveAvgPool2d(
      nn::AdaptiveAvgPool2dOptions(std::vector<std::optional<int64_t>>(size.begin(), size.end()))));
}

struct Row {
  const char* name;
  Make make;
};
constexpr std::array kLayers = {
    Row{"Linear", linear},
    Row{"Embedding", embedding},
    Row{"Conv1d", convolution<nn::Conv1d, 1>},
    Row{"Conv2d", convolution<nn::Conv2d, 2>},
    Row{"Conv3d", convolution<nn::Conv3d, 3>},
    Row{"BatchNorm1d", batch_norm<nn::BatchNorm1d>},
    Row{"BatchNorm2d", batch_norm<nn::BatchNorm2d>},
    Row{"BatchNorm3d", batch_norm<nn::BatchNorm3d>},
    Row{"LayerNorm", layer_norm},
    Row{"GroupNorm", group_norm},
    Row{"Dropout", dropout},
    Row{"ReLU", relu},
    Row{"LeakyReLU", leaky_relu},
    Row{"GELU", gelu},
    Row{"SiLU", of_nothing<nn::SiLU>},
    Row{"Tanh", of_nothing<nn::Tanh>},
    Row{"Sigmoid", of_nothing<nn::Sigmoid>},
    Row{"Softmax", along<nn::Softmax>},
    Row{"LogSoftmax", along<nn::LogSoftmax>},
    Row{"Identity", of_nothing<nn::Identity>},
    Row{"Flatten", flatten},
    Row{"MaxPool2d", pool<nn::MaxPool2d, nn::MaxPool2dOptions>},
    Row{"AvgPool2d", pool<nn::AvgPool2d, nn::AvgPool2dOptions>},
    Row{"AdaptiveAvgPool2d", adaptive_pool},
};

}  // namespace

torch::nn::AnyModule torch_layer(const nlohmann::json& entry) {
  const std::string type = entry.at("type");
  for (const Row& row : kLayers) {
    if (type != row.name) continue;
    LayerArguments of(entry);
    torch::nn::AnyModule made = row.make(of);
    of.finish();
    return made;
  }
  return {};
}

std::vector<std::string> torch_layer_names() {
  std::vector<std::string> names;
  for (const Row& row : kLayers) names.emplace_back(row.name);
  return names;
}

}  // namespace oslo
