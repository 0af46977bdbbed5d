#include "oslo_cpp/exported/module/layers.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "oslo_cpp/exported/file/node.h"

namespace oslo::exported {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;
using Sizes = std::vector<int64_t>;

/// What is known of a layer: its tensors, and the constants among the arguments of its operator.
class Facts {
 public:
  Facts(const ModuleUse& use, const LayerSizes& sizes) : sizes_(sizes) {
    if (use.operation) node_.emplace(*use.operation);
  }

  bool has(const std::string& name) const { return sizes_.count(name) > 0; }
  /// Whether these tensors, and no others, are there; those behind `optional` may be missing.
  bool consists_of(const std::set<std::string>& needed,
                   const std::set<std::string>& optional) const {
    for (const std::string& name : needed) {
      if (!has(name)) return false;
    }
    return std::all_of(sizes_.begin(), sizes_.end(), [&](const auto& item) {
      return needed.count(item.first) > 0 || optional.count(item.first) > 0;
    });
  }
  const Sizes& weight() const { return sizes_.at("weight"); }

  std::optional<Sizes> integers(const std::string& name) const {
    const auto value = argument(name, "as_ints");
    return value ? std::optional(value->integers()) : std::nullopt;
  }
  int64_t integer(const std::string& name, int64_t otherwise) const {
    const auto value = argument(name, "as_int");
    return value ? value->integer() : otherwise;
  }
  double real(const std::string& name, double otherwise) const {
    const auto value = argument(name, "as_float");
    return value ? value->real() : otherwise;
  }
  std::optional<std::string> text(const std::string& name) const {
    const auto value = argument(name, "as_string");
    return value ? std::optional(value->text()) : std::nullopt;
  }

 private:
  std::optional<Document> argument(const std::string& name, std::string_view wanted) const {
    const Document* written = node_ ? node_->argument(name) : nullptr;
    if (written == nullptr) return std::nullopt;
    const auto [kind, value] = written->choice();
    return kind == wanted ? std::optional(value) : std::nullopt;
  }

  const LayerSizes& sizes_;
  std::optional<Node> node_;
};

ModulePtr linear(const Facts& facts) {
  if (!facts.consists_of({"weight"}, {"bias"}) || facts.weight().size() != 2) return nullptr;
  torch::nn::LinearOptions options(facts.weight()[1], facts.weight()[0]);
  options.bias(facts.has("bias"));
  auto layer = std::make_shared<torch::nn::LinearImpl>(
      torch::nn::LinearOptions(1, 1).bias(facts.has("bias")));
  layer->options = options;
  return layer;
}

ModulePtr embedding(const Facts& facts) {
  if (!facts.consists_of({"weight"}, {}) || facts.weight().size() != 2) return nullptr;
  torch::nn::EmbeddingOptions options(facts.weight()[0], facts.weight()[1]);
  const int64_t padding = facts.integer("padding_idx", -1);
  if (padding >= 0) options.padding_idx(padding);
  auto layer = std::make_shared<torch::nn::EmbeddingImpl>(torch::nn::EmbeddingOptions(1, 1));
  layer->options = options;
  return layer;
}

template <size_t D, typename Impl>
ModulePtr convolution(const Facts& facts) {
  using Array = torch::ExpandingArray<D>;
  using Options = torch::nn::detail::ConvNdOptions<D>;
  const bool whole = facts.consists_of({"weight"}, {"bias"}) && facts.weight().size() == D + 2;
  if (!whole) return nullptr;
  const Sizes kernel(facts.weight().begin() + 2, facts.weight().end());
  const int64_t groups = facts.integer("groups", 1);
  const auto array = [&](const std::string& name) -> std::optional<Array> {
    const auto numbers = facts.integers(name);
    return numbers && numbers->size() == D ? std::optional(Array(*numbers)) : std::nullopt;
  };
  Options options(facts.weight()[1] * groups, facts.weight()[0], Array(kernel));
  options.bias(facts.has("bias")).groups(groups);
  if (const auto stride = array("stride")) options.stride(*stride);
  if (const auto dilation = array("dilation")) options.dilation(*dilation);
  if (const auto padding = array("padding")) options.padding(*padding);
  if (facts.text("padding") == "same") options.padding(torch::kSame);
  auto layer =
      std::make_shared<Impl>(torch::nn::ConvOptions<D>(1, 1, Array(1)).bias(facts.has("bias")));
  layer->options = options;
  return layer;
}

/// LibTorch's norms have weight and bias, or neither.
bool has_affine_tensors(const Facts& facts, const std::set<std::string>& others = {}) {
  return facts.has("weight") == facts.has("bias") &&
         (facts.has("weight") ? facts.consists_of({"weight", "bias"}, others)
                              : facts.consists_of({}, others));
}

ModulePtr layer_norm(const Facts& facts) {
  if (!has_affine_tensors(facts)) return nullptr;
  const bool affine = facts.has("weight");
  const auto shape = affine ? std::optional(facts.weight()) : facts.integers("normalized_shape");
  if (!shape) return nullptr;
  torch::nn::LayerNormOptions options(*shape);
  options.eps(facts.real("eps", options.eps())).elementwise_affine(affine);
  auto layer = std::make_shared<torch::nn::LayerNormImpl>(
      torch::nn::LayerNormOptions({1}).elementwise_affine(affine));
  layer->options = options;
  return layer;
}

ModulePtr group_norm(const Facts& facts) {
  if (!has_affine_tensors(facts) || !facts.has("weight")) return nullptr;
  const int64_t groups = facts.integer("num_groups", 0);
  if (groups == 0 || facts.weight().size() != 1) return nullptr;
  torch::nn::GroupNormOptions options(groups, facts.weight()[0]);
  options.eps(facts.real("eps", options.eps()));
  auto layer = std::make_shared<torch::nn::GroupNormImpl>(torch::nn::GroupNormOptions(1, 1));
  layer->options = options;
  return layer;
}

template <typename Impl>
ModulePtr batch_norm(const Facts& facts) {
  const std::set<std::string> statistics = {"running_mean", "running_var", "num_batches_tracked"};
  const auto tracked = std::count_if(statistics.begin(), statistics.end(),
                                     [&](const std::string& name) { return facts.has(name); });
  if (!has_affine_tensors(facts, statistics) || !facts.has("weight")) return nullptr;
  if (tracked != 0 && tracked != 3) return nullptr;
  if (facts.weight().size() != 1) return nullptr;
  torch::nn::BatchNormOptions options(facts.weight()[0]);
  options.eps(facts.real("eps", options.eps())).track_running_stats(tracked != 0);
  options.momentum(facts.real("momentum", *options.momentum()));
  auto layer =
      std::make_shared<Impl>(torch::nn::BatchNormOptions(1).track_running_stats(tracked != 0));
  layer->options = options;
  return layer;
}

struct LayerClass {
  std::string_view python;  ///< as a graph writes it
  std::string_view target;  ///< the operator by which a module without a class is known
  ModulePtr (*make)(const Facts&);
};

constexpr LayerClass kLayers[] = {
    {"torch.nn.modules.linear.Linear", "torch.ops.aten.linear.", linear},
    {"torch.nn.modules.sparse.Embedding", "torch.ops.aten.embedding.", embedding},
    {"torch.nn.modules.conv.Conv1d", "torch.ops.aten.conv1d.",
     convolution<1, torch::nn::Conv1dImpl>},
    {"torch.nn.modules.conv.Conv2d", "torch.ops.aten.conv2d.",
     convolution<2, torch::nn::Conv2dImpl>},
    {"torch.nn.modules.conv.Conv3d", "torch.ops.aten.conv3d.",
     convolution<3, torch::nn::Conv3dImpl>},
    {"torch.nn.modules.normalization.LayerNorm", "torch.ops.aten.layer_norm.", layer_norm},
    {"torch.nn.modules.normalization.GroupNorm", "torch.ops.aten.group_norm.", group_norm},
    {"torch.nn.modules.batchnorm.BatchNorm1d", "", batch_norm<torch::nn::BatchNorm1dImpl>},
    {"torch.nn.modules.batchnorm.BatchNorm2d", "", batch_norm<torch::nn::BatchNorm2dImpl>},
    {"torch.nn.modules.batchnorm.BatchNorm3d", "", batch_norm<torch::nn::BatchNorm3dImpl>},
};

}  // namespace

ModulePtr make_layer(const ModuleUse& use, const LayerSizes& sizes) {
  const std::string target =
      use.class_name.empty() && use.operation ? use.operation->member("target").text() : "";
  for (const LayerClass& known : kLayers) {
    const bool by_class = use.class_name == known.python;
    const bool by_use = !known.target.empty() && target.starts_with(known.target);
    if (by_class || by_use) return known.make(Facts(use, sizes));
  }
  return nullptr;
}

}  // namespace oslo::exported
