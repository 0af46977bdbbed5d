#include "checkpoint/save_options.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/bounded_json.h"

namespace oslo {

SaveOptions& SaveOptions::config(nlohmann::json config) {
  OSLO_CHECK(config.is_object() || config.is_null(), "config.json is a JSON object, not ",
             config.type_name());
  try {
    write_json(config, {});
  } catch (const Error& error) {
    fail("config.json cannot be written: ", error.what());
  }
  config_ = std::make_shared<const nlohmann::json>(std::move(config));
  return *this;
}

const nlohmann::json& SaveOptions::config() const {
  static const nlohmann::json none;
  return config_ ? *config_ : none;
}

}  // namespace oslo
