#include "oslo_cpp/config/config_override.h"

#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "oslo_cpp/config/config_json.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ConfigKey::Kind;

struct Step {
  std::string name;
  Kind parent;
};

std::vector<Step> split_path(const std::string& path, const ConfigKey& schema) {
  std::vector<Step> steps;
  ConfigKey key = schema;
  std::string done;
  std::string rest = path;
  while (true) {
    if (key.kind == Kind::plan || key.kind == Kind::where) {
      steps.push_back({rest, key.kind});
      return steps;
    }
    OSLO_CHECK_AS(config, !key.keys.empty() || key.kind == Kind::any, in_quotes(done),
                  " is a value and has no keys below it, seen ", in_quotes(path));
    const size_t dot = rest.find('.');
    const std::string name = rest.substr(0, dot);
    const ConfigKey* child = key.find(name);
    if (child == nullptr && key.kind != Kind::any) fail_unknown_key(key, done, name, &schema);
    steps.push_back({name, key.kind});
    if (dot == std::string::npos) return steps;
    done = join_keys(done, name);
    rest = rest.substr(dot + 1);
    if (child != nullptr) key = ConfigKey(*child);
  }
}

}  // namespace

void set_at_path(Json& document, const ConfigKey& schema, const std::string& path, Json value) {
  Json* place = &document;
  for (const Step& step : split_path(path, schema)) {
    if (place->is_null()) *place = Json::object();
    if (step.parent == Kind::sized && place->is_number()) {
      *place = Json{{"size", *place}};  // "parallel.tensor": 4 means {"size": 4}
    }
    OSLO_CHECK_AS(config, place->is_object(), in_quotes(path), ": above ", in_quotes(step.name),
                  " stands ", describe(*place), ", which has no keys");
    place = &(*place)[step.name];
  }
  *place = std::move(value);
}

void set_by_override(Json& document, const ConfigKey& schema, const std::string& assignment) {
  OSLO_CHECK_AS(config, is_utf8(assignment) && assignment.find('\0') == std::string::npos,
                "it is not UTF-8 without NUL bytes");
  const size_t equals = assignment.find('=');
  OSLO_CHECK_AS(config, equals != std::string::npos && equals > 0,
                "expected path=value, for example train.dist.tensor_parallel_size=2");
  OSLO_CHECK_AS(config, equals + 1 < assignment.size(), "there is no value after '='");
  const std::string text = assignment.substr(equals + 1);
  const std::optional<Json> value = try_read_ordered_json(text, kConfigLimits);
  set_at_path(document, schema, assignment.substr(0, equals), value ? *value : Json(text));
}

}  // namespace oslo
