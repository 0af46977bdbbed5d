#include "oslo_cpp/config/config.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "oslo_cpp/config/config_dialects.h"
#include "oslo_cpp/config/config_json.h"
#include "oslo_cpp/config/config_schema.h"

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
    if (key.kind == ConfigKey::Kind::plan || key.kind == ConfigKey::Kind::where) {
      steps.push_back({rest, key.kind});
      return steps;
    }
    OSLO_CHECK_AS(config, !key.keys.empty(), in_quotes(done),
                  " is a value and has no keys below it, seen ", in_quotes(path));
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

// Runs `read`; whatever it throws is an `Error` that begins with `source`.
template <typename Read>
auto with_source(const std::string& source, const Read& read) {
  try {
    return read();
  } catch (const std::exception& error) {
    fail_as(ErrorKind::config, source, ": ", error.what());
  }
}

std::string read_config_file(const std::string& path) {
  const std::string shown = printable_path(path);
  OSLO_CHECK_AS(file, path.find('\0') == std::string::npos, "config file '", shown,
                "': no file has a NUL byte in its name");
  std::error_code ignored;
  OSLO_CHECK_AS(file, !std::filesystem::is_directory(path, ignored), "config file '", shown,
                "' is a folder: name a JSON file");
  std::ifstream file(path, std::ios::binary);
  OSLO_CHECK_AS(file, file.good(), "config file '", shown,
                "' cannot be opened: check that it exists and may be read");
  // One byte more than is read, and no end is waited for: pipes have no size, and devices no end.
  std::string text(kConfigLimits.bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  OSLO_CHECK_AS(file, text.size() <= kConfigLimits.bytes, "config file '", shown,
                "' has more than the ", kConfigLimits.bytes, " bytes that are read at most");
  return text;
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
  return with_source("config", [&] { return Config(read_ordered_json(text, kConfigLimits)); });
}

Config Config::from_file(const std::string& path) {
  const std::string text = read_config_file(path);
  return with_source("config file '" + printable_path(path) + "'",
                     [&] { return Config(read_ordered_json(text, kConfigLimits)); });
}

Config Config::from_json(const nlohmann::json& json) {
  return with_source("config", [&] {
    return Config(read_ordered_json(write_json(json, kConfigLimits), kConfigLimits));
  });
}

void Config::set(const std::string& assignment) {
  with_source("override " + in_quotes(assignment), [&] {
    OSLO_CHECK_AS(config, is_utf8(assignment) && assignment.find('\0') == std::string::npos,
                  "it is not UTF-8 without NUL bytes");
    const size_t equals = assignment.find('=');
    OSLO_CHECK_AS(config, equals != std::string::npos && equals > 0,
                  "expected path=value, for example train.dist.tensor_parallel_size=2");
    OSLO_CHECK_AS(config, equals + 1 < assignment.size(), "there is no value after '='");
    const std::vector<Step> steps =
        split_path(assignment.substr(0, equals), config_schema(ConfigDialect::none));
    const std::string text = assignment.substr(equals + 1);
    const std::optional<Json> value = try_read_ordered_json(text, kConfigLimits);
    Json changed = *document_;
    assign(changed, steps, value ? *value : Json(text));
    check_config(changed);
    values_ = read_values(changed);
    document_ = std::make_shared<Json>(std::move(changed));
  });
}

Config Config::with_stage_ids(const std::vector<int>& automatic,
                              const std::vector<int>& actual) const {
  Json changed = *document_;
  const auto write = [&](const char* which, const std::vector<int>& ids) {
    const std::string path = stage_ids_path(values_.dialect, which);
    assign(changed, split_path(path, config_schema(values_.dialect)), Json(ids));
  };
  write("auto", automatic);
  write("actual", actual);
  return Config(std::move(changed));
}

nlohmann::json Config::to_json() const {
  return nlohmann::json(*document_);
}

std::string Config::to_string() const {
  return document_->dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace oslo
