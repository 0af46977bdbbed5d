#pragma once

#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>

#include "parallelizers/layers/grid/grid_mode.h"
#include "parallelizers/layers/linear.h"

namespace oslo::nn {

/// What a linear layer on a grid is.
enum class LinearRole {
  layer,            ///< between layers: its result lies as its input does
  classifier,       ///< few classes: they stay whole
  vocab_classifier  ///< many classes, cut; its weight lies as a vocabulary-parallel table does
};

/// A linear layer y = x W^T + b cut over a grid of ranks (grid_mode.h), x [.., in_features],
/// y [.., out_features]. It is a torch::nn::Linear whose parameters are marked, so `forward` is
/// LibTorch's own; all sizes are global but those of `weight` and `bias`, which are this rank's.
/// With q ranks an axis a rank holds, of `weight` [out, in] and `bias` [out]:
///
///   |                     | 2D                     | 2.5D          | 3D                   |
///   | Linear              | out/q, in/q; out/q^2   | ..;    out/q  | out/q, in/q^2; out/q |
///   | Classifier          | out, in/q^2; out       | ..;    out    | out, in/q; out       |
///   | VocabParallel-      | out/q, in/q; out/q^2   | ..;    out/q  | out/q^2, in/q; out/q |
///   |   Classifier        |                        |               |                      |
///
/// Sizes that do not divide are cut unevenly. x comes cut as `split_input` cuts it, or whole: then
/// a layer takes this rank's part of the batch (dimension 0) itself. y lies as x does (in 3D with
/// the features on the other side, CubeSide); a classifier's has whole classes. On a grid that
/// leaves the weight whole (sizes of 1), y of a whole x is whole.
///
/// Making one draws the whole weight as torch::nn::Linear does, so one seed gives the same layer on
/// any grid, and keeps this rank's part; nothing is communicated, so ranks that draw from other
/// seeds differ in what they all hold (a bias). On one rank it is an ordinary layer. For M rows, K
/// and N features all ranks together receive, forward and backward, bias apart:
///   2D    3(q-1)(MK + KN)
///   2.5D  3(q-1)(MK + dKN) + 2(d-1)KN; the last for the weight's gradient, summed over depth
///   3D    2(q-1)(MK + KN + MN)
/// 2D and 2.5D gather what they gathered once more in backward, so that between forward and
/// backward a rank has nothing but parts; `LinearOptions::keep_gathered` is 2(q-1) in place of
/// 3(q-1). 3D keeps it. Thread safety: as any module's.
class GridLinearImpl : public torch::nn::LinearImpl {
 public:
  /// x (.., in_features), whole on every rank, as the layer takes it; differentiable. A placed x,
  /// and any on one rank, stays as it is.
  at::Tensor split_input(const at::Tensor& x) const { return mode_.place(x); }

  /// Makes new parameters, cut like the present ones.
  void reset() override;
  /// Draws the parameters anew. Call it on this class: torch::nn::LinearImpl's would take the part
  /// for the whole.
  void reset_parameters();
  /// Refused by name when the layer is cut (see parallelizers/layers/layer.h).
  void save(torch::serialize::OutputArchive& archive) const override;
  void pretty_print(std::ostream& stream) const override;

 protected:
  GridLinearImpl(Grid grid, LinearRole role, const LinearOptions& options, const MPU& mpu,
                 CubeSide side);
  /// Gives a copy of the layer parameters of its own.
  void own_copies(const std::optional<at::Device>& device);

 private:
  void cut();

  LinearRole role_;
  GridMode mode_;
  bool keep_gathered_;
};

template <typename Own, Grid grid, LinearRole role>
class LinearOnGrid : public GridLinearImpl {
 public:
  LinearOnGrid(const LinearOptions& options, const MPU& mpu, CubeSide side = CubeSide::first)
      : GridLinearImpl(grid, role, options, mpu, side) {}
  LinearOnGrid(int64_t in_features, int64_t out_features, const MPU& mpu,
               CubeSide side = CubeSide::first)
      : LinearOnGrid(LinearOptions(in_features, out_features), mpu, side) {}

  /// A deep copy, its parameters cut alike.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    auto copy = std::make_shared<Own>(static_cast<const Own&>(*this));
    copy->own_copies(device);
    return copy;
  }
};

// One class a mode, each with its holder.
class Linear2DImpl final : public LinearOnGrid<Linear2DImpl, Grid::flat, LinearRole::layer> {
 public:
  using LinearOnGrid::LinearOnGrid;
};
TORCH_MODULE(Linear2D);

class Linear2p5DImpl final : public LinearOnGrid<Linear2p5DImpl, Grid::deep, LinearRole::layer> {
 public:
  using LinearOnGrid::LinearOnGrid;
};
TORCH_MODULE(Linear2p5D);

class Linear3DImpl final : public LinearOnGrid<Linear3DImpl, Grid::cube, LinearRole::layer> {
 public:
  using LinearOnGrid::LinearOnGrid;
};
TORCH_MODULE(Linear3D);

class Classifier2DImpl final
    : public LinearOnGrid<Classifier2DImpl, Grid::flat, LinearRole::classifier> {
 public:
  using LinearOnGrid::LinearOnGrid;
};
TORCH_MODULE(Classifier2D);

class Classifier2p5DImpl final
    : public LinearOnGrid<Classifier2p5DImpl, Grid::deep, LinearRole::classifier> {
 public:
  using LinearOnGrid::LinearOnGrid;
};
TORCH_MODULE(Classifier2p5D);

class Classifier3DImpl final
    : public LinearOnGrid<Classifier3DImpl, Grid::cube, LinearRole::classifier> {
 public:
  using LinearOnGrid::LinearOnGrid;
};
TORCH_MODULE(Classifier3D);

class VocabParallelClassifier2DImpl final
    : public LinearOnGrid<VocabParallelClassifier2DImpl, Grid::flat, LinearRole::vocab_classifier> {
 public:
  using LinearOnGrid::LinearOnGrid;
};
TORCH_MODULE(VocabParallelClassifier2D);

class VocabParallelClassifier2p5DImpl final
    : public LinearOnGrid<VocabParallelClassifier2p5DImpl, Grid::deep,
                          LinearRole::vocab_classifier> {
 public:
  using LinearOnGrid::LinearOnGrid;
};
TORCH_MODULE(VocabParallelClassifier2p5D);

class VocabParallelClassifier3DImpl final
    : public LinearOnGrid<VocabParallelClassifier3DImpl, Grid::cube, LinearRole::vocab_classifier> {
 public:
  using LinearOnGrid::LinearOnGrid;
};
TORCH_MODULE(VocabParallelClassifier3D);

}  // namespace oslo::nn
