#include "oslo_cpp/config.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "mpu/error.h"
#include "oslo_cpp/config_dialects.h"
#include "oslo_cpp/config_json.h"
#include "oslo_cpp/config_schema.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;

struct Step {
  std::string name;
  ConfigKey::Kind parent;
};

// Splits an override's path by the schema, so that a plan pattern, dots and all, stays one key.
std::vector<Step> split_path(const std::string& path, const ConfigKey& schema) {
  std::vector<Step> steps;
  ConfigKey key = schema;
  std::string done;
  std::string rest = path;
  while (true) {
    if (key.kind == ConfigKey::Kind::plan) {
      steps.push_back({rest, key.kind});
      return steps;
    }
    OSLO_CHECK(!key.keys.empty(), in_quotes(done), " is a value and has no keys below it, seen ",
               in_quotes(path));
    size_t dot = rest.find('.');
    std::string name = rest.substr(0, dot);
    const ConfigKey* child = key.find(name);
    if (child == nullptr) {
      fail_unknown_key(key, done, name);
    }
    steps.push_back({name, key.kind});
    if (dot == std::string::npos) {
      return steps;
    }
    done = join_path(done, name);
    rest = rest.substr(dot + 1);
    key = ConfigKey(*child);
  }
}

Json read_override_value(const std::string& text) {
  try {
    return read_json(text);
  } catch (const nlohmann::json::parse_error&) {
    return text;
  }
}

void assign(Json& document, const std::vector<Step>& steps, Json value) {
  Json* place = &document;
  for (const Step& step : steps) {
    if (place->is_null()) {
      *place = Json::object();
    }
    if (step.parent == ConfigKey::Kind::sized && place->is_number()) {
      *place = Json{{"size", *place}};  // "parallel.tensor": 4 means {"size": 4}
    }
    place = &(*place)[step.name];
  }
  *place = std::move(value);
}

Json read_document(const std::string& text) {
  try {
    return read_json(text);
  } catch (const nlohmann::json::parse_error& error) {
    fail("not valid JSON: ", describe(error));
  }
}

}  // namespace

Config::Config() : document_(std::make_shared<Json>(Json::object())) {}

Config::Config(Json document) {
  check_config(document);
  check_complete(document);
  values_ = read_values(document);
  document_ = std::make_shared<Json>(std::move(document));
}

Config Config::parse(const std::string& text) {
  try {
    return Config(read_document(text));
  } catch (const Error& error) {
    fail("config: ", error.what());
  }
}

Config Config::from_file(const std::string& path) {
  std::error_code ignored;
  OSLO_CHECK(!std::filesystem::is_directory(path, ignored), "config file '", path,
             "' is a folder: name a JSON file");
  std::ifstream file(path, std::ios::binary);
  OSLO_CHECK(file.good(), "config file '", path,
             "' cannot be opened: check that it exists and "
             "may be read");
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  try {
    return Config(read_document(text));
  } catch (const Error& error) {
    fail("config file '", path, "': ", error.what());
  }
}

Config Config::from_json(const nlohmann::json& json) {
  try {
    return Config(Json(json));
  } catch (const Error& error) {
    fail("config: ", error.what());
  }
}

void Config::set(const std::string& assignment) {
  try {
    size_t equals = assignment.find('=');
    OSLO_CHECK(equals != std::string::npos && equals > 0,
               "expected path=value, for example "
               "train.dist.tensor_parallel_size=2");
    OSLO_CHECK(equals + 1 < assignment.size(), "there is no value after '='");
    std::vector<Step> steps =
        split_path(assignment.substr(0, equals), config_schema(ConfigDialect::none));
    Json changed = *document_;
    assign(changed, steps, read_override_value(assignment.substr(equals + 1)));
    check_config(changed);
    values_ = read_values(changed);
    document_ = std::make_shared<Json>(std::move(changed));
  } catch (const Error& error) {
    fail("override ", in_quotes(assignment), ": ", error.what());
  }
}

nlohmann::json Config::to_json() const {
  return nlohmann::json(*document_);
}

std::string Config::to_string() const {
  return document_->dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace oslo
