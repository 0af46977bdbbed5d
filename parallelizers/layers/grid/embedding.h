#pragma once

#include <torch/nn/modules/embedding.h>

#include <memory>
#include <optional>

#include "parallelizers/layers/grid/grid_mode.h"

namespace oslo::nn {

/// What is cut of a table on a grid.
enum class TableRole {
  features,   ///< the features alone: few words
  vocabulary  ///< words and features
};

/// An embedding table [num_embeddings, embedding_dim] cut over a grid of ranks (grid_mode.h). It is
/// a torch::nn::Embedding whose weight is marked; options are global. With q ranks an axis a rank
/// holds, of V words and H features:
///
///   |                        | 2D       | 2.5D     | 3D         |
///   | Embedding              | V, H/q^2 | V, H/q^2 | V, H/q     |
///   | VocabParallelEmbedding | V/q, H/q | V/q, H/q | V/q^2, H/q |
///
/// Indices come whole, or with their batch (dimension 0) cut as that of activations; the result is
/// an activation as layers of the mode take it. `Embedding` gathers features over row (2D, 2.5D).
/// `VocabParallelEmbedding` looks up what a rank holds and reduce-scatters the batch of the sum
/// over row; in 3D it gathers words over input, and reduce-scatters over weight. Gradients are
/// reduce-scattered likewise, and summed over depth.
///
/// Making one draws the whole table as torch::nn::Embedding does, so one seed gives the same table
/// on any grid, and keeps this rank's part; one given by `_weight` is copied. Nothing is
/// communicated: all ranks draw from one seed. On one rank it is an ordinary layer. Thread safety:
/// as any module's.
class GridEmbeddingImpl : public torch::nn::EmbeddingImpl {
 public:
  /// Makes a new table, cut like the present one.
  void reset() override;
  /// Draws the table anew. Call it on this class: torch::nn::EmbeddingImpl's would take the part
  /// for the whole.
  void reset_parameters();
  /// Refused by name when the table is cut (see parallelizers/layers/layer.h).
  void save(torch::serialize::OutputArchive& archive) const override;
  void pretty_print(std::ostream& stream) const override;

 protected:
  GridEmbeddingImpl(Grid grid, TableRole role, const torch::nn::EmbeddingOptions& options,
                    const MPU& mpu, CubeSide side);
  /// Gives a copy of the layer a table of its own.
  void own_copies(const std::optional<at::Device>& device);

 private:
  void cut();
  torch::nn::EmbeddingOptions whole_options() const;

  TableRole role_;
  GridMode mode_;
  std::optional<int64_t> padding_idx_;
};

template <typename Own, Grid grid, TableRole role>
class EmbeddingOnGrid : public GridEmbeddingImpl {
 public:
  EmbeddingOnGrid(const torch::nn::EmbeddingOptions& options, const MPU& mpu,
                  CubeSide side = CubeSide::first)
      : GridEmbeddingImpl(grid, role, options, mpu, side) {}
  EmbeddingOnGrid(int64_t num_embeddings, int64_t embedding_dim, const MPU& mpu,
                  CubeSide side = CubeSide::first)
      : EmbeddingOnGrid(torch::nn::EmbeddingOptions(num_embeddings, embedding_dim), mpu, side) {}

  /// A deep copy, its table cut alike.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    auto copy = std::make_shared<Own>(static_cast<const Own&>(*this));
    copy->own_copies(device);
    return copy;
  }
};

// One class a mode, each with its holder.
class Embedding2DImpl final
    : public EmbeddingOnGrid<Embedding2DImpl, Grid::flat, TableRole::features> {
 public:
  using EmbeddingOnGrid::EmbeddingOnGrid;
};
TORCH_MODULE(Embedding2D);

class Embedding2p5DImpl final
    : public EmbeddingOnGrid<Embedding2p5DImpl, Grid::deep, TableRole::features> {
 public:
  using EmbeddingOnGrid::EmbeddingOnGrid;
};
TORCH_MODULE(Embedding2p5D);

class Embedding3DImpl final
    : public EmbeddingOnGrid<Embedding3DImpl, Grid::cube, TableRole::features> {
 public:
  using EmbeddingOnGrid::EmbeddingOnGrid;
};
TORCH_MODULE(Embedding3D);

class VocabParallelEmbedding2DImpl final
    : public EmbeddingOnGrid<VocabParallelEmbedding2DImpl, Grid::flat, TableRole::vocabulary> {
 public:
  using EmbeddingOnGrid::EmbeddingOnGrid;
};
TORCH_MODULE(VocabParallelEmbedding2D);

class VocabParallelEmbedding2p5DImpl final
    : public EmbeddingOnGrid<VocabParallelEmbedding2p5DImpl, Grid::deep, TableRole::vocabulary> {
 public:
  using EmbeddingOnGrid::EmbeddingOnGrid;
};
TORCH_MODULE(VocabParallelEmbedding2p5D);

class VocabParallelEmbedding3DImpl final
    : public EmbeddingOnGrid<VocabParallelEmbedding3DImpl, Grid::cube, TableRole::vocabulary> {
 public:
  using EmbeddingOnGrid::EmbeddingOnGrid;
};
TORCH_MODULE(VocabParallelEmbedding3D);

}  // namespace oslo::nn
