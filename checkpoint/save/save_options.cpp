#include "checkpoint/save/save_options.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/formats/json/bounded_json.h"

namespace oslo {
namespace {

/// `json` to keep, which `file` will hold: what a load can read.
std::shared_ptr<const nlohmann::json> checked(nlohmann::json json, const char* file) {
  OSLO_CHECK(json.is_object() || json.is_null(), file, " is a JSON object, not ", json.type_name());
  try {
    read_json(write_json(json, kExtraLimits, /*indent=*/2), kExtraLimits);
  } catch (const Error& error) {
    fail(file, " cannot be written: ", error.what());
  }
  return std::make_shared<const nlohmann::json>(std::move(json));
}

const nlohmann::json& value_or_null(const std::shared_ptr<const nlohmann::json>& json) {
  static const nlohmann::json none;
  return json ? *json : none;
}

}  // namespace

SaveOptions& SaveOptions::config(nlohmann::json config) {
  config_ = checked(std::move(config), "config.json");
  return *this;
}

SaveOptions& SaveOptions::parallel_config(nlohmann::json config) {
  parallel_config_ = checked(std::move(config), "parallel_config.json");
  return *this;
}

SaveOptions& SaveOptions::extra(nlohmann::json extra) {
  extra_ = checked(std::move(extra), kExtraName);
  return *this;
}

const nlohmann::json& SaveOptions::config() const {
  return value_or_null(config_);
}

const nlohmann::json& SaveOptions::parallel_config() const {
  return value_or_null(parallel_config_);
}

const nlohmann::json& SaveOptions::extra() const {
  return value_or_null(extra_);
}

}  // namespace oslo
