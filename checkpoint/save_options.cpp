#include "checkpoint/save_options.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace oslo {

SaveOptions& SaveOptions::config(nlohmann::json config) {
  OSLO_CHECK(config.is_object() || config.is_null(), "config.json is a JSON object, not ",
             config.type_name());
  config_ = std::make_shared<const nlohmann::json>(std::move(config));
  return *this;
}

const nlohmann::json& SaveOptions::config() const {
  static const nlohmann::json none;
  return config_ ? *config_ : none;
}

}  // namespace oslo
