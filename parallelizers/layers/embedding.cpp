#include "parallelizers/layers/embedding.h"

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include <algorithm>

#include "parallelizers/layers/layer.h"
#include "parallelizers/modules/module_tree.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo::nn {
namespace {

/// Rows that every rank has; 1 at least, which LibTorch does not compare row 0 with.
int64_t fewest_rows(const torch::nn::EmbeddingImpl& layer) {
  const LayoutPtr kept = layout(layer.weight);
  int64_t fewest = layer.options.num_embeddings();
  int cuts = 0;
  for (int axis = 0; axis < kept->axes(); ++axis) {
    const auto& [dim, cut] = (*kept)[axis];
    if (dim != 0) continue;
    ++cuts;
    for (int rank = 0; rank < kept->group(axis)->size(); ++rank) {
      fewest = std::min(fewest, cut->local_size(rank));
    }
  }
  return cuts > 1 ? 1 : std::max<int64_t>(fewest, 1);
}

/// The table will be cut in place: not the caller's own.
torch::nn::EmbeddingOptions with_own_table(torch::nn::EmbeddingOptions options) {
  if (options._weight().defined()) options._weight(options._weight().detach().clone());
  return options;
}

}  // namespace

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& options,
                                                       const MPU& mpu, const std::string& axis,
                                                       std::optional<int> layer_idx)
    : torch::nn::EmbeddingImpl(with_own_table(options)),
      LayerIdx(layer_idx),
      padding_idx_(this->options.padding_idx()) {
  // It served; kept, a later reset would take the part for a table.
  this->options._weight(at::Tensor());
  if (is_left_to_plan(*this, mpu, axis, "vocab")) return;
  cut_parameter(weight, mpu.mesh({axis}), 0, "weight");
  move_padding_to_mark(*this);
}

void VocabParallelEmbeddingImpl::reset() {
  const LayoutPtr kept = layout(weight);
  options = whole_options();
  torch::nn::EmbeddingImpl::reset();
  if (!kept) return;
  mark_parameter(weight, kept, "weight");
  move_padding_to_mark(*this);
}

void VocabParallelEmbeddingImpl::reset_parameters() {
  assign_part(weight, torch::nn::EmbeddingImpl(whole_options()).weight);
}

torch::nn::EmbeddingOptions VocabParallelEmbeddingImpl::whole_options() const {
  return torch::nn::EmbeddingOptions(options).padding_idx(padding_idx_);
}

std::shared_ptr<torch::nn::Module> VocabParallelEmbeddingImpl::clone(
    const std::optional<at::Device>& device) const {
  auto copy = std::make_shared<VocabParallelEmbeddingImpl>(*this);
  own_parameters(*copy, device);
  copy->weight = registered_parameters(*copy)["weight"];
  return copy;
}

void VocabParallelEmbeddingImpl::save(torch::serialize::OutputArchive& archive) const {
  save_layer(*this, archive);
}

void VocabParallelEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << class_name(*this) << "(num_embeddings=" << options.num_embeddings()
         << ", embedding_dim=" << options.embedding_dim();
  if (padding_idx_) stream << ", padding_idx=" << *padding_idx_;
  stream << ", ranks=" << ranks_of(weight);
  if (weight.size(0) != options.num_embeddings()) {
    stream << ", local_num_embeddings=" << weight.size(0);
  }
  if (weight.size(1) != options.embedding_dim()) {
    stream << ", local_embedding_dim=" << weight.size(1);
  }
  stream << ")";
}

void move_padding_to_mark(torch::nn::EmbeddingImpl& layer) {
  if (!layer.options.padding_idx() || !is_placed(layer.weight)) return;
  const int64_t row = *layer.options.padding_idx();
  set_padding_row(layer.weight, row);
  if (row >= fewest_rows(layer)) layer.options.padding_idx(std::nullopt);
}

}  // namespace oslo::nn
