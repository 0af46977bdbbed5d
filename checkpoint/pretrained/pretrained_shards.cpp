#include "checkpoint/pretrained/pretrained_shards.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/pretrained/weight_index.h"

namespace oslo {

void PretrainedShards::add(TensorOutline outline) {
  const uint64_t bytes = outline.bytes();
  if (shards_.empty() || bytes > room_) {
    shards_.emplace_back();
    room_ = max_bytes_;
  }
  room_ -= std::min(bytes, room_);
  total_bytes_ += bytes;
  shards_.back().push_back(std::move(outline));
}

std::string PretrainedShards::file_name(size_t shard) const {
  if (shards_.size() == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, shards_.size());
  return name;
}

void PretrainedShards::write_index(const std::filesystem::path& folder) const {
  if (shards_.size() < 2) return;
  WeightIndex index{static_cast<int64_t>(total_bytes_), {}};
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (const TensorOutline& outline : shards_[i]) index.files[outline.name] = file_name(i);
  }
  index.write(folder / "model.safetensors.index.json");
}

bool says_tied(const nlohmann::json& config, const PretrainedFamily& family) {
  const auto entry = config.find("tie_word_embeddings");
  return entry != config.end() && entry->is_boolean() ? entry->get<bool>() : family.tied;
}

}  // namespace oslo
