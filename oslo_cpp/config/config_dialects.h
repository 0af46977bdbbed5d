#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "oslo_cpp/config/config_values.h"

namespace oslo {

/// The full paths of a dialect's own keys, for messages: a user fixes what they wrote.
struct SizeNames {
  std::string data;
  std::string tensor;
  std::string pipeline;
  std::string mode;
  std::string depth;
};
SizeNames size_names(ConfigDialect dialect);

/// Where a dialect keeps the stages of layers: "train.dist.actual_pipeline_stage_id" for "actual".
std::string stage_ids_path(ConfigDialect dialect, const char* which);

/// Reads a document that `check_config` has accepted.
ConfigValues read_values(const nlohmann::ordered_json& document);

/// The rules between keys of one dialect: a size in every sized object, a mode for a tensor size
/// above 1, a depth for 2.5d and only there. Throws `Error`.
void check_complete(const nlohmann::ordered_json& document);

}  // namespace oslo
