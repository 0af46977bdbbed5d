#include "parallelizers/layers/grid/patch_embedding.h"

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include "mpu/base/error.h"
#include "parallelizers/layers/layer.h"
#include "parallelizers/modules/module_tree.h"

namespace oslo::nn {
namespace {

/// `features`: which dimension they are.
GridCuts by_features(int64_t features) {
  return {.flat = {{"column", features}, {"row", features}},
          .deep = {{"column", features}, {"row", features}},
          .cube = {{"output", features}}};
}

const GridRoles kRoles{.flat = {{"row", kTakesBatchBringsWeight}},
                       .deep = {{"depth", kTakesBatch}, {"row", kTakesBatchBringsWeight}},
                       .cube = {{"input", kTakesBatch}, {"weight", kSplitsBatch}}};

torch::nn::Conv2dOptions convolution(const PatchEmbeddingOptions& options) {
  OSLO_CHECK(options.image_size() > 0 && options.patch_size() > 0 && options.channels() > 0 &&
                 options.features() > 0,
             "a PatchEmbedding of images of ", options.image_size(), " pixels a side, patches of ",
             options.patch_size(), ", ", options.channels(), " channels and ", options.features(),
             " features; all must be positive");
  OSLO_CHECK(options.image_size() % options.patch_size() == 0, "a PatchEmbedding: patches of ",
             options.patch_size(), " pixels a side do not fill images of ", options.image_size());
  return torch::nn::Conv2dOptions(options.channels(), options.features(), options.patch_size())
      .stride(options.patch_size());
}

}  // namespace

GridPatchEmbeddingImpl::GridPatchEmbeddingImpl(Grid grid, const PatchEmbeddingOptions& options,
                                               const MPU& mpu, CubeSide side)
    : torch::nn::Conv2dImpl(convolution(options)),
      patches_(options),
      mode_(grid, mpu, side, "PatchEmbedding") {
  make_rows();
  cut();
}

void GridPatchEmbeddingImpl::make_rows() {
  const int64_t side = patches_.image_size() / patches_.patch_size();
  cls_token = register_parameter("cls_token", at::zeros({1, 1, patches_.features()}));
  position = register_parameter("position", at::zeros({1, 1 + side * side, patches_.features()}));
}

void GridPatchEmbeddingImpl::cut() {
  mode_.cut(weight, "weight", by_features(0), UseKind::product, kRoles);
  mode_.cut(bias, "bias", by_features(0));
  mode_.cut(cls_token, "cls_token", by_features(2));
  mode_.cut(position, "position", by_features(2));
}

at::Tensor GridPatchEmbeddingImpl::forward(const at::Tensor& images) {
  OSLO_CHECK(images.dim() == 4 && images.size(1) == patches_.channels() &&
                 images.size(2) == patches_.image_size() && images.size(3) == images.size(2),
             mode_.layer(), " takes images [N, ", patches_.channels(), ", ", patches_.image_size(),
             ", ", patches_.image_size(), "]; this input is ", images.sizes());
  const at::Tensor rows = Conv2dImpl::forward(images).flatten(2).transpose(1, 2);
  return at::cat({cls_token.expand({rows.size(0), -1, -1}), rows}, 1) + position;
}

void GridPatchEmbeddingImpl::reset() {
  torch::nn::Conv2dImpl::reset();
  make_rows();
  cut();
}

void GridPatchEmbeddingImpl::own_copies(const std::optional<at::Device>& device) {
  own_parameters(*this, device);
  const auto& parameters = registered_parameters(*this);
  weight = parameters["weight"];
  bias = parameters["bias"];
  cls_token = parameters["cls_token"];
  position = parameters["position"];
}

void GridPatchEmbeddingImpl::save(torch::serialize::OutputArchive& archive) const {
  save_layer(*this, archive);
}

void GridPatchEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << class_name(*this) << "(image_size=" << patches_.image_size()
         << ", patch_size=" << patches_.patch_size() << ", channels=" << patches_.channels()
         << ", features=" << patches_.features() << ", grid=" << mode_.to_string()
         << ", local_weight=" << weight.sizes() << ")";
}

}  // namespace oslo::nn
