#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oslo_cpp/config/config_values.h"

namespace oslo {

/// One key that a config may hold, and the keys below it. The whole schema is one such tree; type
/// checks, "nearest valid name" and the paths of overrides all come from it.
struct ConfigKey {
  enum class Kind {
    object,   ///< the keys below
    flag,     ///< true or false
    count,    ///< an integer from `minimum` to `maximum`
    amount,   ///< a number, not negative
    many,     ///< an array of objects of the keys below
    stages,   ///< an array of integers from 0
    choice,   ///< one of `choices`
    sized,    ///< a count, or an object of the keys below
    plan,     ///< an object of module path patterns, each a style (plan/layers/style.h)
    words,    ///< an array of strings, each one of `choices`, or a module path pattern
    text,     ///< a string
    bytes,    ///< an integer from 1, or a text such as "2GB" (parse_bytes)
    where,    ///< an object of module path patterns, each a stage or an array of stages
    numbers,  ///< an array of numbers from 0
    any,      ///< any JSON, an object of any keys above all: others know what it means
  };

  std::string name;
  Kind kind = Kind::object;
  std::vector<ConfigKey> keys = {};
  std::vector<std::string> choices = {};
  bool nullable = false;
  int64_t maximum = 1 << 20;  // three such sizes multiply without overflow
  int64_t minimum = 1;        // of a count

  /// The key of that name below this one; null if there is none.
  const ConfigKey* find(std::string_view key) const;
};

/// Keys as a schema writes them.
namespace config_keys {

inline ConfigKey object(std::string name, std::vector<ConfigKey> keys) {
  return {.name = std::move(name), .kind = ConfigKey::Kind::object, .keys = std::move(keys)};
}
inline ConfigKey key(std::string name, ConfigKey::Kind kind) {
  return {.name = std::move(name), .kind = kind};
}
inline ConfigKey choice(std::string name, std::vector<std::string> choices) {
  return {.name = std::move(name), .kind = ConfigKey::Kind::choice, .choices = std::move(choices)};
}
inline ConfigKey nullable(ConfigKey key) {
  key.nullable = true;
  return key;
}

}  // namespace config_keys

/// The tree of a dialect, including what is accepted beside each; for `none` all dialects at once.
ConfigKey config_schema(ConfigDialect dialect);

/// The dialect of a document, by its top-level keys. Throws if it mixes two.
ConfigDialect config_dialect(const nlohmann::ordered_json& document);

/// Throws unless every key is known and every value has the right type and range. Rules between
/// keys are not checked here.
void check_config(const nlohmann::ordered_json& document);
/// The same by a schema of another kind of document.
void check_config(const ConfigKey& schema, const nlohmann::ordered_json& document);

/// Throws the error for `name`, which is no key of `parent`, the key at `path`. Where the name does
/// belong is looked for in `everywhere`: null, in all dialects of a config.
[[noreturn]] void fail_unknown_key(const ConfigKey& parent, const std::string& path,
                                   const std::string& name, const ConfigKey* everywhere = nullptr);

/// "path.name", or "name" at the top.
std::string join_keys(const std::string& path, std::string_view name);

}  // namespace oslo
