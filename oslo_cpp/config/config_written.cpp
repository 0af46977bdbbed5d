#include "oslo_cpp/config/config_written.h"

#include <algorithm>
#include <array>
#include <string>

#include "mpu/base/error.h"
#include "oslo_cpp/config/config_json.h"
#include "oslo_cpp/config/list_expression.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ConfigKey::Kind;

void write_out(const ConfigKey& key, const std::string& path, Json& value) {
  if (key.kind == Kind::stages && value.is_string()) {
    const auto text = value.get<std::string>();
    try {
      value = read_list(text);
    } catch (const ConfigError& error) {
      fail_as(ErrorKind::config, in_quotes(path), " = ", in_quotes(text), ": ", error.what());
    }
  }
  if (!value.is_object()) return;
  for (auto& [name, below] : value.items()) {
    if (const ConfigKey* child = key.find(name)) write_out(*child, join_keys(path, name), below);
  }
}

}  // namespace

void write_out_lists(const ConfigKey& schema, Json& document) {
  write_out(schema, "", document);
}

void forget_libai_defaults(Json& document) {
  constexpr std::array kSizes = {"data_parallel_size", "tensor_parallel_size",
                                 "pipeline_parallel_size"};
  if (!document.is_object() || !document.contains("train")) return;
  Json& train = document["train"];
  if (!train.is_object() || !train.contains("dist")) return;
  Json& dist = train["dist"];
  const bool all =
      dist.is_object() && std::all_of(kSizes.begin(), kSizes.end(), [&](const char* size) {
        return dist.contains(size) && dist[size].is_number_integer() && dist[size] == 1;
      });
  if (all) dist["data_parallel_size"] = nullptr;
}

}  // namespace oslo
