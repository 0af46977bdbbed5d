#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "oslo_cpp/config/config_schema.h"

namespace oslo {

/// Sets the value at `path`, which is split by the schema: a plan pattern, dots and all, stays one
/// key. Objects on the way are made. Throws `ConfigError` for a path that the schema does not have.
void set_at_path(nlohmann::ordered_json& document, const ConfigKey& schema, const std::string& path,
                 nlohmann::ordered_json value);

/// The same for "path=value"; the value is read as JSON, and as a text if it is none.
void set_by_override(nlohmann::ordered_json& document, const ConfigKey& schema,
                     const std::string& assignment);

}  // namespace oslo
