#include "parallelizers/layers/grid/layer_norm.h"

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include "mpu/base/error.h"
#include "parallelizers/layers/layer.h"
#include "parallelizers/modules/module_tree.h"

namespace oslo::nn {
namespace {

const GridCuts kAffine{
    .flat = {{"column", -1}, {"row", -1}}, .deep = {{"column", -1}}, .cube = {{"output", -1}}};

const torch::nn::LayerNormOptions& checked(const torch::nn::LayerNormOptions& options) {
  OSLO_CHECK(!options.normalized_shape().empty(),
             "a LayerNorm on a grid without a normalized shape; name the features: "
             "LayerNormOptions({features})");
  return options;
}

}  // namespace

GridLayerNormImpl::GridLayerNormImpl(Grid grid, const torch::nn::LayerNormOptions& options,
                                     const MPU& mpu, CubeSide side)
    : torch::nn::LayerNormImpl(checked(options)), mode_(grid, mpu, side, "LayerNorm") {
  cut();
}

void GridLayerNormImpl::cut() {
  mode_.cut(weight, "weight", kAffine);
  mode_.cut(bias, "bias", kAffine);
}

void GridLayerNormImpl::reset() {
  torch::nn::LayerNormImpl::reset();
  cut();
}

void GridLayerNormImpl::own_copies(const std::optional<at::Device>& device) {
  own_parameters(*this, device);
  const auto& parameters = registered_parameters(*this);
  if (weight.defined()) weight = parameters["weight"];
  if (bias.defined()) bias = parameters["bias"];
}

void GridLayerNormImpl::save(torch::serialize::OutputArchive& archive) const {
  save_layer(*this, archive);
}

void GridLayerNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << class_name(*this)
         << "(normalized_shape=" << c10::IntArrayRef(options.normalized_shape())
         << ", eps=" << options.eps() << ", elementwise_affine=" << options.elementwise_affine()
         << ", grid=" << mode_.to_string();
  if (weight.defined()) stream << ", local_weight=" << weight.sizes();
  stream << ")";
}

}  // namespace oslo::nn
