#include "oslo_cpp/train_net/train_config.h"

#include <utility>

#include "mpu/base/error.h"
#include "oslo_cpp/config/config_files.h"
#include "oslo_cpp/config/config_json.h"
#include "oslo_cpp/config/config_override.h"
#include "oslo_cpp/config/config_written.h"
#include "oslo_cpp/train_net/references.h"
#include "oslo_cpp/train_net/train_schema.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;

/// Of a document that others, or overrides, may complete.
void check_part(const Json& document) {
  const ConfigKey schema = train_schema();
  Json part = with_references(schema, document, Unresolved::left_out);
  write_out_lists(schema, part);
  check_config(schema, part);
}

void check_file(Json& document) {
  check_part(document);
  forget_libai_defaults(document);
}

}  // namespace

TrainConfig::TrainConfig(Json document) : document_(std::move(document)) {}

TrainConfig TrainConfig::from_file(const std::string& path) {
  Json document = read_config_files(path, check_file);
  return with_source(config_file_name(path), [&] {
    check_part(document);
    return TrainConfig(std::move(document));
  });
}

TrainConfig TrainConfig::parse(const std::string& text) {
  return with_source("config", [&] {
    Json document = read_ordered_json(text, kConfigLimits);
    check_no_base(document);
    check_file(document);
    return TrainConfig(std::move(document));
  });
}

void TrainConfig::set(const std::string& assignment) {
  with_source("override " + in_quotes(assignment), [&] {
    Json changed = document_;
    set_by_override(changed, train_schema(), assignment);
    check_part(changed);
    document_ = std::move(changed);
  });
}

Json TrainConfig::resolved() const {
  return with_source("config", [&] {
    const ConfigKey schema = train_schema();
    Json whole = with_references(schema, document_, Unresolved::refused);
    write_out_lists(schema, whole);
    check_config(schema, whole);
    return whole;
  });
}

TrainValues TrainConfig::values() const {
  const Json whole = resolved();
  return with_source("config", [&] {
    TrainValues values = read_train_values(whole);
    check_train_values(values);
    return values;
  });
}

Config TrainConfig::parallel() const {
  const Json part = parallel_part(resolved());
  Config config = Config::parse(part.dump());
  // Of a text it would be LiBai's default; here a file has lost that already, and this is asked
  // for.
  const Json dist = part.value("/train/dist"_json_pointer, Json::object());
  if (dist.value("data_parallel_size", Json()).is_number()) {
    config.set("train.dist.data_parallel_size=" + dist["data_parallel_size"].dump());
  }
  return config;
}

std::string TrainConfig::to_string() const {
  return resolved().dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string TrainConfig::to_string(const Config& initialized) const {
  Json whole = resolved();
  const nlohmann::json parallel = initialized.to_json();
  for (const char* ids : {"auto_pipeline_stage_id", "actual_pipeline_stage_id"}) {
    const auto path = nlohmann::json::json_pointer(std::string("/train/dist/") + ids);
    if (!parallel.contains(path)) continue;
    const auto numbers = parallel.at(path).get<std::vector<int>>();
    set_at_path(whole, train_schema(), std::string("train.dist.") + ids, Json(numbers));
  }
  return whole.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace oslo
