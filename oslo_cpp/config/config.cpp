#include "oslo_cpp/config/config.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "mpu/base/error.h"
#include "oslo_cpp/config/config_dialects.h"
#include "oslo_cpp/config/config_files.h"
#include "oslo_cpp/config/config_json.h"
#include "oslo_cpp/config/config_override.h"
#include "oslo_cpp/config/config_schema.h"
#include "oslo_cpp/config/config_written.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;

/// Of a document that is read: not of one that overrides changed.
void check_written(Json& document) {
  write_out_lists(config_schema(config_dialect(document)), document);
  check_config(document);
  forget_libai_defaults(document);
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
  return with_source("config", [&] {
    Json document = read_ordered_json(text, kConfigLimits);
    check_no_base(document);
    check_written(document);
    return Config(std::move(document));
  });
}

Config Config::from_file(const std::string& path) {
  Json document = read_config_files(path, check_written);
  return with_source(config_file_name(path), [&] { return Config(std::move(document)); });
}

Config Config::from_json(const nlohmann::json& json) {
  return with_source("config", [&] {
    Json document = read_ordered_json(write_json(json, kConfigLimits), kConfigLimits);
    check_no_base(document);
    check_written(document);
    return Config(std::move(document));
  });
}

void Config::set(const std::string& assignment) {
  with_source("override " + in_quotes(assignment), [&] {
    Json changed = *document_;
    set_by_override(changed, config_schema(ConfigDialect::none), assignment);
    write_out_lists(config_schema(config_dialect(changed)), changed);
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
    set_at_path(changed, config_schema(values_.dialect), path, Json(ids));
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
