#include "checkpoint/pretrained/pretrained_shards.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/pretrained/weight_index.h"
#include "mpu/base/error.h"

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
  if (shards_.size() == 1) return model_file(kFormat);
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu", shard + 1, shards_.size());
  return oslo::file_name(names_of(kFormat).model + std::string(numbers), kFormat);
}

void PretrainedShards::write_index(const std::filesystem::path& folder) const {
  if (shards_.size() < 2) return;
  WeightIndex index{static_cast<int64_t>(total_bytes_), {}};
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (const TensorOutline& outline : shards_[i]) index.files[outline.name] = file_name(i);
  }
  index.write(folder / (model_file(kFormat) + ".index.json"));
}

bool says_tied(const nlohmann::json& config, const PretrainedFamily& family) {
  const auto entry = config.find("tie_word_embeddings");
  return entry != config.end() && entry->is_boolean() ? entry->get<bool>() : family.tied;
}

void check_ties(const std::vector<std::pair<std::string, size_t>>& names,
                const PretrainedFamily& family) {
  const auto number_of = [&](const std::string& wanted) -> std::optional<size_t> {
    for (const auto& [name, number] : names) {
      if (name == wanted) return number;
    }
    return std::nullopt;
  };
  for (const auto& [head, table] : family.ties) {
    const auto one = number_of(head), other = number_of(table);
    OSLO_CHECK(!one || !other || *one == *other, "config.json ties '", head, "' to '", table,
               "', the model has the two apart; tie them in the model, or say "
               "\"tie_word_embeddings\": false");
  }
}

}  // namespace oslo
