#pragma once

#include <torch/nn/modules/normalization.h>

#include <memory>
#include <optional>

#include "parallelizers/layers/grid/grid_mode.h"

namespace oslo::nn {

/// Layer normalization of activations that are cut over a grid of ranks (grid_mode.h). It is a
/// torch::nn::LayerNorm whose weight and bias are marked; `normalized_shape` is global, and its
/// last dimension is cut. With q ranks an axis a rank holds H/q^2 of each in 2D (gathered over row
/// where they are used), H/q in 2.5D and 3D. x comes cut as the mode's layers take it, or whole,
/// and is cut so; the result lies as x does.
///
/// Mean and variance are reduced over the axis that cuts the features: an all-reduce of two numbers
/// a row each, in float64 for float32, so that statistics of a large mean keep what float32 has
/// (rules/reduce/normalization.cpp). On one rank it is an ordinary layer. Thread safety: as any
/// module's.
class GridLayerNormImpl : public torch::nn::LayerNormImpl {
 public:
  at::Tensor forward(const at::Tensor& x) { return LayerNormImpl::forward(mode_.place(x)); }
  /// x (.., features), whole on every rank, as the layer takes it; differentiable.
  at::Tensor split_input(const at::Tensor& x) const { return mode_.place(x); }

  /// Makes new parameters, cut like the present ones.
  void reset() override;
  /// Refused by name when the layer is cut (see parallelizers/layers/layer.h).
  void save(torch::serialize::OutputArchive& archive) const override;
  void pretty_print(std::ostream& stream) const override;

 protected:
  GridLayerNormImpl(Grid grid, const torch::nn::LayerNormOptions& options, const MPU& mpu,
                    CubeSide side);
  /// Gives a copy of the layer parameters of its own.
  void own_copies(const std::optional<at::Device>& device);

 private:
  void cut();

  GridMode mode_;
};

template <typename Own, Grid grid>
class LayerNormOnGrid : public GridLayerNormImpl {
 public:
  LayerNormOnGrid(const torch::nn::LayerNormOptions& options, const MPU& mpu,
                  CubeSide side = CubeSide::first)
      : GridLayerNormImpl(grid, options, mpu, side) {}
  LayerNormOnGrid(int64_t features, const MPU& mpu, CubeSide side = CubeSide::first)
      : LayerNormOnGrid(torch::nn::LayerNormOptions({features}), mpu, side) {}

  /// A deep copy, its parameters cut alike.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    auto copy = std::make_shared<Own>(static_cast<const Own&>(*this));
    copy->own_copies(device);
    return copy;
  }
};

// One class a mode, each with its holder.
class LayerNorm2DImpl final : public LayerNormOnGrid<LayerNorm2DImpl, Grid::flat> {
 public:
  using LayerNormOnGrid::LayerNormOnGrid;
};
TORCH_MODULE(LayerNorm2D);

class LayerNorm2p5DImpl final : public LayerNormOnGrid<LayerNorm2p5DImpl, Grid::deep> {
 public:
  using LayerNormOnGrid::LayerNormOnGrid;
};
TORCH_MODULE(LayerNorm2p5D);

class LayerNorm3DImpl final : public LayerNormOnGrid<LayerNorm3DImpl, Grid::cube> {
 public:
  using LayerNormOnGrid::LayerNormOnGrid;
};
TORCH_MODULE(LayerNorm3D);

}  // namespace oslo::nn
