#include "checkpoint/pretrained/pretrained_options.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {

PretrainedOptions& PretrainedOptions::family(PretrainedFamily family) {
  family_ = std::make_shared<const PretrainedFamily>(std::move(family));
  return *this;
}

PretrainedOptions& PretrainedOptions::ignore(std::string pattern) {
  ignored_.push_back(std::move(pattern));
  return *this;
}

PretrainedOptions& PretrainedOptions::convert(bool convert) {
  convert_ = convert;
  return *this;
}

PretrainedOptions& PretrainedOptions::config(const nlohmann::json& config) {
  OSLO_CHECK(config.is_object(), "config.json is a JSON object, not ", config.type_name());
  config_ = std::make_shared<const nlohmann::json>(config);
  return *this;
}

PretrainedOptions& PretrainedOptions::max_shard_bytes(int64_t bytes) {
  OSLO_CHECK(bytes >= 1, "max_shard_bytes is ", bytes, "; a file holds at least 1 byte");
  max_shard_bytes_ = bytes;
  return *this;
}

void PretrainedOptions::check_loading() const {
  OSLO_CHECK(
      !config_,
      "load_pretrained: PretrainedOptions().config(...) is for save_pretrained; a load reads "
      "the folder's config.json, leave it out");
  OSLO_CHECK(!max_shard_bytes_,
             "load_pretrained: PretrainedOptions().max_shard_bytes(...) is for save_pretrained; "
             "leave it out");
}

void PretrainedOptions::check_saving() const {
  OSLO_CHECK(ignored_.empty(), "save_pretrained: PretrainedOptions().ignore(\"",
             ignored_.empty() ? "" : ignored_.front(),
             "\") is for load_pretrained, and a save writes all of the model; leave it out");
  OSLO_CHECK(
      !convert_,
      "save_pretrained: PretrainedOptions().convert(true) is for load_pretrained, and a save "
      "writes the types that the model has; convert the model with to(), and leave it out");
}

const PretrainedFamily& PretrainedOptions::family_of(const nlohmann::json& config,
                                                     const std::string& where) const {
  if (family_) return *family_;
  if (const PretrainedFamily* found = find_family(config)) return *found;
  const auto type = config.find("model_type");
  const std::string named =
      type != config.end() && type->is_string() ? type->get<std::string>() : "";
  std::string list;
  for (const PretrainedFamily& family : pretrained_families())
    list += (list.empty() ? "" : ", ") + family.model_type;
  fail(where,
       named.empty() ? " has no model_type" : " has the model_type '" + printable(named) + "'",
       "; known are ", list, ". Give the table of another: PretrainedOptions().family(...)");
}

}  // namespace oslo
