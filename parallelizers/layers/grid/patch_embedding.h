#pragma once

#include <torch/nn/modules/conv.h>

#include <memory>
#include <optional>

#include "parallelizers/layers/grid/grid_mode.h"

namespace oslo::nn {

/// A ViT's first layer: square images of `image_size` pixels in square patches of `patch_size`.
struct PatchEmbeddingOptions {
  PatchEmbeddingOptions(int64_t image_size, int64_t patch_size, int64_t channels, int64_t features)
      : image_size_(image_size),
        patch_size_(patch_size),
        channels_(channels),
        features_(features) {}

  /// Pixels of a side, of the image and of a patch. The patches must fill the image.
  TORCH_ARG(int64_t, image_size);
  TORCH_ARG(int64_t, patch_size);
  TORCH_ARG(int64_t, channels);
  /// Of an embedded patch.
  TORCH_ARG(int64_t, features);
};

/// The embedded patches of images (N, channels, image, image), behind a class token and with
/// positions: (N, 1 + patches, features), an activation as layers of the mode take it
/// (grid_mode.h). It is a torch::nn::Conv2d beside two parameters, all of which are cut by
/// features: with q ranks an axis a rank holds 1/q^2 of them in 2D and 2.5D (gathered over row
/// where they are used), 1/q in 3D. Images come whole, or with their batch cut as that of
/// activations.
///
/// Making one draws the convolution as torch::nn::Conv2d does, from one seed on all ranks, as
/// nothing is communicated; class token and positions are zeros.
/// On one rank it is an ordinary layer. Thread safety: as any module's.
class GridPatchEmbeddingImpl : public torch::nn::Conv2dImpl {
 public:
  at::Tensor forward(const at::Tensor& images);

  /// (1, 1, features) and (1, 1 + patches, features), this rank's part of the features.
  at::Tensor cls_token, position;

  /// Makes new parameters, cut like the present ones.
  void reset() override;
  /// Refused by name when the layer is cut (see parallelizers/layers/layer.h).
  void save(torch::serialize::OutputArchive& archive) const override;
  void pretty_print(std::ostream& stream) const override;

 protected:
  GridPatchEmbeddingImpl(Grid grid, const PatchEmbeddingOptions& options, const MPU& mpu,
                         CubeSide side);
  /// Gives a copy of the layer parameters of its own.
  void own_copies(const std::optional<at::Device>& device);

 private:
  void make_rows();
  void cut();

  PatchEmbeddingOptions patches_;
  GridMode mode_;
};

template <typename Own, Grid grid>
class PatchEmbeddingOnGrid : public GridPatchEmbeddingImpl {
 public:
  PatchEmbeddingOnGrid(const PatchEmbeddingOptions& options, const MPU& mpu,
                       CubeSide side = CubeSide::first)
      : GridPatchEmbeddingImpl(grid, options, mpu, side) {}

  /// A deep copy, its parameters cut alike.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    auto copy = std::make_shared<Own>(static_cast<const Own&>(*this));
    copy->own_copies(device);
    return copy;
  }
};

// One class a mode, each with its holder.
class PatchEmbedding2DImpl final : public PatchEmbeddingOnGrid<PatchEmbedding2DImpl, Grid::flat> {
 public:
  using PatchEmbeddingOnGrid::PatchEmbeddingOnGrid;
};
TORCH_MODULE(PatchEmbedding2D);

class PatchEmbedding2p5DImpl final
    : public PatchEmbeddingOnGrid<PatchEmbedding2p5DImpl, Grid::deep> {
 public:
  using PatchEmbeddingOnGrid::PatchEmbeddingOnGrid;
};
TORCH_MODULE(PatchEmbedding2p5D);

class PatchEmbedding3DImpl final : public PatchEmbeddingOnGrid<PatchEmbedding3DImpl, Grid::cube> {
 public:
  using PatchEmbeddingOnGrid::PatchEmbeddingOnGrid;
};
TORCH_MODULE(PatchEmbedding3D);

}  // namespace oslo::nn
