#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

/// The "model.cfg" of a config that `oslo train` reads, and what stands in its "dataloader".
namespace zoo {

/// A name that LiBai has for a model's size, and Hugging Face's, which the models have.
using Names = std::vector<std::pair<std::string, std::string>>;

/// A config.json of Hugging Face's: `defaults`, with what `cfg` says, by either name. Throws
/// oslo::ConfigError for a key that the model does not have, with the nearest one, and for a size
/// that is given by both names.
nlohmann::json config_json(const nlohmann::json& cfg, nlohmann::json defaults, const Names& names);

/// What the model's own reader makes of that: its errors are oslo::ConfigErrors of 'model.cfg'.
template <typename Config>
Config read_cfg(const nlohmann::json& cfg, const Names& names);

/// The keys of `object`, at `path`, are some of `known`: otherwise an oslo::ConfigError.
void check_keys(const nlohmann::json& object, const std::string& path,
                const std::vector<std::string>& known);

/// A value of `object`, or `otherwise` where it has none; an oslo::ConfigError for one of another
/// type.
template <typename T>
T value_or(const nlohmann::json& object, const std::string& path, const char* key, T otherwise);

[[noreturn]] void fail_wrong(const std::string& path, const std::string& what);

template <typename Config>
Config read_cfg(const nlohmann::json& cfg, const Names& names) {
  const nlohmann::json whole = config_json(cfg, Config().to_json(), names);
  try {
    return Config::from_json(whole);
  } catch (const std::exception& error) {
    fail_wrong("model.cfg", error.what());
  }
}

template <typename T>
T value_or(const nlohmann::json& object, const std::string& path, const char* key, T otherwise) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return otherwise;
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    fail_wrong(path + "." + key, "seen " + found->dump());
  }
}

}  // namespace zoo
