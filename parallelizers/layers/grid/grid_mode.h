#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mpu/grid/mpu.h"
#include "parallelizers/placement/layout/layout.h"
#include "parallelizers/placement/layout/weight_uses.h"

namespace oslo::nn {

/// Which grid a layer is cut over, and by which axes of the MPU:
///   2D (SUMMA: arXiv 2104.05343)   row, column
///   2.5D (arXiv 2105.14500)        depth, row, column
///   3D (arXiv 2105.14450)          output, weight, input
/// Axes may differ in size. One that the MPU lacks has size 1.
enum class Grid { flat, deep, cube };

/// Of a 3D layer, which way its input lies: `first` takes features cut over "output" and gives them
/// cut over "weight", `second` the other way round, so that a block of the two ends as it began.
/// Norms, embeddings and classifiers say by it what lies before them. Other grids have one side.
enum class CubeSide { first, second };

/// An axis of the grid and the dimension of a tensor that it cuts; negative ones count from the
/// end.
struct AxisDim {
  const char* axis;
  int64_t dim;
};
/// Outermost first: of two axes that cut one dimension the later cuts what the earlier one left.
using AxisDims = std::vector<AxisDim>;

/// What a weight has its results and inputs do on an axis (AxisUse).
struct AxisRole {
  const char* axis;
  AxisUse use;
};
using AxisRoles = std::vector<AxisRole>;

/// A whole input keeps this rank's part of the batch.
inline constexpr AxisUse kTakesBatch{.input_dim = 0};
/// The same, and the weight comes to where that is.
inline constexpr AxisUse kTakesBatchBringsWeight{.input_dim = 0, .brings_weight = true};
/// Of a sum each rank gets its part of the batch.
inline constexpr AxisUse kScattersBatch{.result = AxisUse::Result::scatter, .dim = 0};
/// Of a whole result each rank keeps its part of the batch, inside what cuts it already.
inline constexpr AxisUse kSplitsBatch{.result = AxisUse::Result::split, .dim = 0};

/// How one parameter of a layer lies, in each mode.
struct GridCuts {
  AxisDims flat, deep, cube;
};
struct GridRoles {
  AxisRoles flat, deep, cube;
};

/// The grid that a layer lies on.
class GridMode {
 public:
  /// `layer`: its kind, such as "Linear". Throws, on every rank and before anything is
  /// communicated, where the MPU cuts layers over an axis that is none of the grid's.
  GridMode(Grid grid, const MPU& mpu, CubeSide side, const std::string& layer);

  /// Marks a whole parameter, in place, as this rank's part. Does nothing on one rank, and where it
  /// is undefined. `roles` are those of its products, or of its look-ups.
  void cut(const at::Tensor& parameter, const std::string& name, const GridCuts& cuts,
           UseKind kind = UseKind::none, const GridRoles& roles = {},
           bool gathers_again = false) const;

  /// An activation (batch, .., features) as layers of the mode take it: the batch cut over row (and
  /// depth, the outer one of the MPU first) and the features over column; in 3D the batch over
  /// input, then weight, the features over output. A tensor that is placed already stays as it is,
  /// and so does any tensor on one rank. Differentiable; no communication, backward gathers.
  at::Tensor place(const at::Tensor& whole) const;

  Grid grid() const { return grid_; }
  /// "Linear2D".
  const std::string& layer() const { return layer_; }
  /// "row 2 x column 2"; "1 rank".
  std::string to_string() const;

 private:
  /// The mesh's axis of that name, on the layer's side of the cube; none where the MPU lacks it.
  std::optional<int> axis(const char* name) const;
  LayoutPtr layout_of(const AxisDims& dims, at::IntArrayRef sizes) const;
  template <typename Of>
  const auto& mine(const Of& of) const {
    return grid_ == Grid::flat ? of.flat : grid_ == Grid::deep ? of.deep : of.cube;
  }

  Grid grid_;
  CubeSide side_;
  std::string layer_;
  MeshPtr mesh_;
};

}  // namespace oslo::nn
