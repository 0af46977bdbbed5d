#include "oslo_cpp/train_net/references.h"

#include <algorithm>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/base/words/nearest_name.h"
#include "oslo_cpp/config/config_json.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ConfigKey::Kind;

constexpr int kLongestChain = 16;

bool may_refer(Kind kind) {
  return kind == Kind::count || kind == Kind::amount || kind == Kind::flag ||
         kind == Kind::stages || kind == Kind::numbers;
}

/// "model.cfg.hidden_layers", or a number of times it.
struct Reference {
  std::string path;
  std::optional<int64_t> times;
};

std::optional<Reference> reference_in(const Json& value) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() > 200) return std::nullopt;
  static const std::regex form(R"((?:(\d{1,6})\s*\*\s*)?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+))");
  std::smatch found;
  if (!std::regex_match(value.get_ref<const std::string&>(), found, form)) return std::nullopt;
  Reference reference{found[2].str(), {}};
  if (found[1].matched) reference.times = std::stoll(found[1].str());
  return reference;
}

/// Null where there is no such key.
const Json* find(const Json& document, const std::string& path) {
  const Json* place = &document;
  for (size_t at = 0; at <= path.size();) {
    const size_t dot = std::min(path.find('.', at), path.size());
    const std::string name = path.substr(at, dot - at);
    if (!place->is_object() || !place->contains(name)) return nullptr;
    place = &place->at(name);
    at = dot + 1;
  }
  return place;
}

/// "; the nearest name in 'model.cfg' is 'hidden_layers'", or all of them where none is near.
std::string nearest(const Json& document, const std::string& path) {
  const size_t dot = path.rfind('.');
  const std::string above = path.substr(0, dot);
  const Json* const place = find(document, above);
  if (place == nullptr || !place->is_object() || place->empty()) {
    return ", and nothing in " + in_quotes(above);
  }
  std::vector<std::string> names;
  for (const auto& [name, value] : place->items()) names.push_back(name);
  const std::string* const meant = name_meant(names, path.substr(dot + 1));
  if (meant == nullptr)
    return "; the names in " + in_quotes(above) + " are " + c10::Join(", ", names);
  return "; the nearest name in " + in_quotes(above) + " is " + in_quotes(*meant);
}

class Replacer {
 public:
  Replacer(const Json& document, Unresolved unresolved)
      : document_(document), unresolved_(unresolved) {}

  Json object(const ConfigKey& key, const std::string& path, const Json& value) const {
    Json replaced = Json::object();
    for (const auto& [name, below] : value.items()) {
      const ConfigKey* const child = key.find(name);
      const std::string place = join_keys(path, name);
      if (child == nullptr) {
        replaced[name] = below;
      } else if (child->kind == Kind::any) {
        replaced[name] = any(place, below);
      } else if (below.is_object()) {
        replaced[name] = object(*child, place, below);
      } else if (may_refer(child->kind)) {
        if (const auto found = follow(place, below, /*required=*/true)) replaced[name] = *found;
      } else {
        replaced[name] = below;
      }
    }
    return replaced;
  }

 private:
  /// Of any JSON: a text may be a text.
  Json any(const std::string& path, const Json& value) const {
    if (!value.is_object()) return follow(path, value, /*required=*/false).value_or(value);
    Json replaced = Json::object();
    for (const auto& [name, below] : value.items()) {
      replaced[name] = any(join_keys(path, name), below);
    }
    return replaced;
  }

  /// What `value`, at `from`, stands for; nothing where there is no such key.
  std::optional<Json> follow(const std::string& from, Json value, bool required) const {
    std::string chain = in_quotes(from);
    int64_t times = 1;
    bool multiplied = false;
    int length = 0;
    for (auto reference = reference_in(value); reference; reference = reference_in(value)) {
      chain += " -> " + in_quotes(reference->path);
      OSLO_CHECK_AS(config, ++length <= kLongestChain,
                    "references go in a circle, or are too many: ", chain);
      const Json* const next = find(document_, reference->path);
      if (next == nullptr && (!required || unresolved_ == Unresolved::left_out)) {
        return std::nullopt;
      }
      if (next == nullptr) {
        fail_as(ErrorKind::config, in_quotes(from), " = ", in_quotes(reference->path),
                ": there is no such key", nearest(document_, reference->path));
      }
      if (reference->times) {
        multiplied = true;
        times = std::min(times * *reference->times, int64_t{1} << 40);
      }
      value = *next;
    }
    if (!multiplied) return value;
    OSLO_CHECK_AS(config, value.is_number_integer() && value.get<int64_t>() < 1 << 20,
                  in_quotes(from), ": a multiple of ", describe(value),
                  ", where a whole number is meant: ", chain);
    return Json(times * value.get<int64_t>());
  }

  const Json& document_;
  Unresolved unresolved_;
};

}  // namespace

Json with_references(const ConfigKey& schema, const Json& document, Unresolved unresolved) {
  if (!document.is_object()) return document;
  return Replacer(document, unresolved).object(schema, "", document);
}

}  // namespace oslo
