#pragma once

#include <torch/nn/modules/embedding.h>

#include <optional>
#include <string>

#include "mpu/grid/mpu.h"
#include "parallelizers/modules/layer_idx.h"

namespace oslo::nn {

/// An embedding table [num_embeddings, embedding_dim] whose rows are cut over the tensor-parallel
/// ranks: a rank looks up the rows that it holds and the results are summed (Megatron-LM, arXiv
/// 1909.08053): one all-reduce forward, none backward. Indices and
/// `options` are global; `padding_idx` is too, and moves to the table's mark. Making one draws the
/// whole table as torch::nn::Embedding does, so one seed gives the same table at any number of
/// ranks, and keeps this rank's rows; a table given by `_weight` is copied. On one rank it is an
/// ordinary layer.
class VocabParallelEmbeddingImpl final : public torch::nn::EmbeddingImpl, public LayerIdx {
 public:
  VocabParallelEmbeddingImpl(int64_t num_embeddings, int64_t embedding_dim, const MPU& mpu)
      : VocabParallelEmbeddingImpl(torch::nn::EmbeddingOptions(num_embeddings, embedding_dim),
                                   mpu) {}
  /// `axis`: over which the rows are cut, as `MPU::group` takes it. `layer_idx`: as that of
  /// LinearOptions, 0 in LiBai; such a table on a grid with pipeline stages is whole until
  /// `initialize` cuts it.
  VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& options, const MPU& mpu,
                             const std::string& axis = "tensor",
                             std::optional<int> layer_idx = std::nullopt);

  /// Makes a new table, cut like the present one.
  void reset() override;
  /// Draws the table anew. Call it on this class: torch::nn::EmbeddingImpl's would zero row
  /// `padding_idx` of this rank's part.
  void reset_parameters();

  /// A deep copy, its table cut alike.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
  /// Refused by name when the table is cut (see parallelizers/layers/layer.h).
  void save(torch::serialize::OutputArchive& archive) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  torch::nn::EmbeddingOptions whole_options() const;

  std::optional<int64_t> padding_idx_;
};
TORCH_MODULE(VocabParallelEmbedding);

/// `padding_idx` of an embedding layer whose table is cut goes to the mark, where the rule finds
/// it. It leaves the options, on every rank, where it is no row of each rank's part: forward would
/// compare it with this rank's rows. Does nothing when the table is whole or the layer has no
/// padding.
void move_padding_to_mark(torch::nn::EmbeddingImpl& layer);

}  // namespace oslo::nn
