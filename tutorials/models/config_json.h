#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

// Reading a config.json of Hugging Face's.
namespace config_json {

/// The entry, or `otherwise` where there is none (or null): what files of older versions lack.
template <typename T>
T value_or(const nlohmann::json& json, const char* key, T otherwise) {
  const auto entry = json.find(key);
  return entry == json.end() || entry->is_null() ? otherwise : entry->get<T>();
}

/// Throws std::runtime_error where the entry is there and is not what the model is written for.
inline void expect(const nlohmann::json& json, const char* key, const nlohmann::json& expected) {
  const auto entry = json.find(key);
  if (entry != json.end() && !entry->is_null() && *entry != expected) {
    throw std::runtime_error("config.json: " + std::string(key) + " is " + entry->dump() +
                             "; this model is written for " + expected.dump());
  }
}

/// What `read` makes of a config.json of the family `model_type`; where an entry is missing or of
/// another type, a std::runtime_error that names it.
template <typename Read>
auto read_config(const nlohmann::json& json, const char* model_type, const Read& read) {
  try {
    expect(json, "model_type", model_type);
    return read();
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error("not a config.json of " + std::string(model_type) + ": " +
                             error.what());
  }
}

}  // namespace config_json
