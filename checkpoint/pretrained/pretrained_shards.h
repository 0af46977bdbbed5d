#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/formats/tensors/tensor_stream.h"
#include "checkpoint/pretrained/family.h"
#include "checkpoint/storage/format.h"

namespace oslo {

/// Which tensors lie in which file of a Hugging Face folder: in their order, a file until it is
/// full. One file is model.safetensors, several are model-00001-of-0000N.safetensors.
class PretrainedShards {
 public:
  static constexpr Format kFormat = Format::safetensors;

  /// A tensor with more bytes has a file of its own.
  explicit PretrainedShards(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  void add(TensorOutline outline);

  size_t count() const { return shards_.size(); }
  const std::vector<TensorOutline>& outlines(size_t shard) const { return shards_[shard]; }
  std::string file_name(size_t shard) const;
  uint64_t total_bytes() const { return total_bytes_; }

  /// Writes model.safetensors.index.json where there are several files.
  void write_index(const std::filesystem::path& folder) const;

 private:
  uint64_t max_bytes_;
  uint64_t room_ = 0;  // left in the last file
  uint64_t total_bytes_ = 0;
  std::vector<std::vector<TensorOutline>> shards_;
};

/// Whether config.json says that a head has its table's values.
bool says_tied(const nlohmann::json& config, const PretrainedFamily& family);

/// Throws `Error` where the family ties what a model has twice, of whose tensors these are the
/// names with their numbers: Python would lose one of the two.
void check_ties(const std::vector<std::pair<std::string, size_t>>& names,
                const PretrainedFamily& family);

}  // namespace oslo
