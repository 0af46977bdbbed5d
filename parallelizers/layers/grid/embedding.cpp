#include "parallelizers/layers/grid/embedding.h"

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include "mpu/base/error.h"
#include "parallelizers/layers/embedding.h"
#include "parallelizers/layers/layer.h"
#include "parallelizers/modules/module_tree.h"

namespace oslo::nn {
namespace {

/// Of a table (words, features).
struct TableCuts {
  GridCuts weight;
  GridRoles roles;
};

/// What is left of the batch in 3D is taken of the result: there it lies inside that of "input".
const TableCuts kFeatures{{.flat = {{"column", 1}, {"row", 1}},
                           .deep = {{"column", 1}, {"row", 1}},
                           .cube = {{"output", 1}}},
                          {.flat = {{"row", kTakesBatchBringsWeight}},
                           .deep = {{"depth", kTakesBatch}, {"row", kTakesBatchBringsWeight}},
                           .cube = {{"input", kTakesBatch}, {"weight", kSplitsBatch}}}};

const TableCuts kVocabulary{{.flat = {{"row", 0}, {"column", 1}},
                             .deep = {{"row", 0}, {"column", 1}},
                             .cube = {{"weight", 0}, {"input", 0}, {"output", 1}}},
                            {.flat = {{"row", kScattersBatch}},
                             .deep = {{"depth", kTakesBatch}, {"row", kScattersBatch}},
                             .cube = {{"input", kTakesBatch}, {"weight", kScattersBatch}}}};

const char* kind_of(TableRole role) {
  return role == TableRole::features ? "Embedding" : "VocabParallelEmbedding";
}

/// The table will be cut in place: not the caller's own.
torch::nn::EmbeddingOptions with_own_table(torch::nn::EmbeddingOptions options, TableRole role) {
  OSLO_CHECK(options.num_embeddings() > 0 && options.embedding_dim() > 0, "a ", kind_of(role),
             " on a grid of ", options.num_embeddings(), " x ", options.embedding_dim(),
             "; both must be positive");
  if (options._weight().defined()) options._weight(options._weight().detach().clone());
  return options;
}

}  // namespace

GridEmbeddingImpl::GridEmbeddingImpl(Grid grid, TableRole role,
                                     const torch::nn::EmbeddingOptions& options, const MPU& mpu,
                                     CubeSide side)
    : torch::nn::EmbeddingImpl(with_own_table(options, role)),
      role_(role),
      mode_(grid, mpu, side, kind_of(role)),
      padding_idx_(this->options.padding_idx()) {
  // It served; kept, a later reset would take the part for a table.
  this->options._weight(at::Tensor());
  cut();
}

void GridEmbeddingImpl::cut() {
  const TableCuts& table = role_ == TableRole::features ? kFeatures : kVocabulary;
  mode_.cut(weight, "weight", table.weight, UseKind::lookup, table.roles);
  move_padding_to_mark(*this);
}

void GridEmbeddingImpl::reset() {
  options = whole_options();
  torch::nn::EmbeddingImpl::reset();
  cut();
}

void GridEmbeddingImpl::reset_parameters() {
  assign_part(weight, torch::nn::EmbeddingImpl(whole_options()).weight);
}

torch::nn::EmbeddingOptions GridEmbeddingImpl::whole_options() const {
  return torch::nn::EmbeddingOptions(options).padding_idx(padding_idx_);
}

void GridEmbeddingImpl::own_copies(const std::optional<at::Device>& device) {
  own_parameters(*this, device);
  weight = registered_parameters(*this)["weight"];
}

void GridEmbeddingImpl::save(torch::serialize::OutputArchive& archive) const {
  save_layer(*this, archive);
}

void GridEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << class_name(*this) << "(num_embeddings=" << options.num_embeddings()
         << ", embedding_dim=" << options.embedding_dim();
  if (padding_idx_) stream << ", padding_idx=" << *padding_idx_;
  stream << ", grid=" << mode_.to_string() << ", local_weight=" << weight.sizes() << ")";
}

}  // namespace oslo::nn
