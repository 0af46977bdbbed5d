#include "oslo_cpp/config/config_schema.h"

#include <array>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/time_limit.h"
#include "oslo_cpp/config/config_json.h"
#include "oslo_cpp/config/engine_keys.h"
#include "parallelizers/memory/recompute/kept_kinds.h"
#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ConfigKey::Kind;
using namespace config_keys;

ConfigKey flag(std::string name) {
  return key(std::move(name), Kind::flag);
}
ConfigKey count(std::string name) {
  return key(std::move(name), Kind::count);
}
ConfigKey sized(std::string name, std::vector<ConfigKey> more = {}) {
  more.insert(more.begin(), count("size"));
  return {.name = std::move(name), .kind = Kind::sized, .keys = std::move(more)};
}
ConfigKey schedule(std::string name) {
  return choice(std::move(name), pipeline::schedule_kinds());
}
ConfigKey amount(std::string name) {
  return key(std::move(name), Kind::amount);
}

ConfigKey stage_ids(const char* name) {
  return nullable({.name = name, .kind = Kind::stages, .maximum = StageSet::kMost - 1});
}

/// What LiBai's dialect has in its own objects, and the others at the top.
std::vector<ConfigKey> saved_stages() {
  return {stage_ids("auto_pipeline_stage_id"), stage_ids("actual_pipeline_stage_id")};
}

/// LiBai has it in its own object, the others at the top.
ConfigKey amp_keys() {
  return object("amp", {flag("enabled"), choice("dtype", {"bfloat16", "float16"})});
}

ConfigKey zero_keys() {
  ConfigKey stage = count("stage");
  stage.maximum = 3;
  ConfigKey copies = count("copies_per_host");
  copies.minimum = 0;
  copies.maximum = 1;
  return object("zero_optimization",
                {flag("enabled"), stage, count("shard_size"), flag("reshard"), copies});
}

ConfigKey activation_checkpoint() {
  return object("activation_checkpoint",
                {flag("enabled"),
                 count("every"),
                 {.name = "modules", .kind = Kind::words},
                 {.name = "keep", .kind = Kind::words, .choices = recompute::kinds_to_keep()},
                 amount("keep_at_most"),
                 {.name = "memory", .kind = Kind::bytes},
                 flag("offload"),
                 {.name = "offload_ahead", .kind = Kind::bytes}});
}

ConfigKey oslo_keys() {
  return object("model_parallelism",
                {flag("enable"), count("tensor_parallel_size"), count("pipeline_parallel_size"),
                 count("num_model_chunks"), schedule("pipeline_schedule")});
}

ConfigKey libai_keys() {
  ConfigKey dist =
      object("dist", {nullable(count("data_parallel_size")), count("tensor_parallel_size"),
                      count("pipeline_parallel_size"), count("num_model_chunks"),
                      schedule("pipeline_schedule"), nullable(count("pipeline_num_layers")),
                      stage_ids("custom_pipeline_stage_id")});
  for (ConfigKey& key : saved_stages()) dist.keys.push_back(std::move(key));
  return object("train", {std::move(dist), nullable(count("num_accumulation_steps")),
                          activation_checkpoint(), zero_keys(), amp_keys()});
}

/// What Colossal-AI's engine reads, beside its "parallel".
std::vector<ConfigKey> engine_keys() {
  return {
      object("fp16", {flag("enabled"), choice("mode", {"torch"}), amount("init_scale"),
                      amount("growth_factor"), amount("backoff_factor"), count("growth_interval")}),
      count("gradient_accumulation"),
      amount("clip_grad_norm"),
      {.name = "gradient_handler",
       .kind = Kind::many,
       .keys = {choice("type", gradient_handler_names())}},
      count("NUM_MICRO_BATCHES")};
}

ConfigKey colossal_ai_keys() {
  return object("parallel",
                {nullable(sized("data")),
                 nullable(sized("pipeline", {count("num_model_chunks"), schedule("schedule")})),
                 sized("tensor", {nullable(choice("mode", {"1d", "2d", "2.5d", "3d", "sequence"})),
                                  count("depth"), nullable(object("kwargs", {count("depth")})),
                                  flag("keep_gathered")})});
}

struct DialectKeys {
  ConfigDialect dialect;
  ConfigKey (*keys)();
};
constexpr std::array<DialectKeys, 3> kDialects = {{{ConfigDialect::oslo, oslo_keys},
                                                   {ConfigDialect::libai, libai_keys},
                                                   {ConfigDialect::colossal_ai, colossal_ai_keys}}};

}  // namespace

const ConfigKey* ConfigKey::find(std::string_view key) const {
  for (const ConfigKey& child : keys) {
    if (child.name == key) {
      return &child;
    }
  }
  return nullptr;
}

std::string join_keys(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : c10::str(path, ".", name);
}

ConfigKey config_schema(ConfigDialect dialect) {
  ConfigKey root;
  for (const DialectKeys& each : kDialects) {
    if (dialect == ConfigDialect::none || dialect == each.dialect) {
      root.keys.push_back(each.keys());
    }
  }
  root.keys.push_back(choice(
      "rank_order", {oslo::to_string(RankOrder::pp_dp_tp), oslo::to_string(RankOrder::dp_pp_tp)}));
  std::vector<std::string> backends;
  for (const auto& [transport, name] : kTransportNames) backends.push_back(name);
  root.keys.push_back(choice("backend", backends));
  ConfigKey timeout = count("timeout");
  timeout.maximum = kMostTimeoutSeconds;
  root.keys.push_back(timeout);
  root.keys.push_back(flag("kernel_fusion"));
  root.keys.push_back(flag("strict"));
  root.keys.push_back(flag("sequence_parallel"));
  root.keys.push_back(count("context_parallel_size"));
  root.keys.push_back(choice("context_attention", {"auto", "gather", "ulysses", "ring"}));
  root.keys.push_back(choice("context_order", {"contiguous", "head_tail"}));
  root.keys.push_back(
      {.name = "plan", .kind = Kind::plan, .choices = {"column", "row", "vocab", "replicate"}});
  root.keys.push_back({.name = "stages", .kind = Kind::where, .maximum = StageSet::kMost - 1});
  root.keys.push_back(choice("balance_stages", {"time", "memory"}));
  root.keys.push_back(flag("master_weights"));
  root.keys.push_back(choice("reduce_dtype", {"float32", "bfloat16", "float16"}));
  if (dialect == ConfigDialect::colossal_ai || dialect == ConfigDialect::none) {
    for (ConfigKey& key : engine_keys()) root.keys.push_back(std::move(key));
  }
  if (dialect != ConfigDialect::libai) {
    root.keys.push_back(amp_keys());
    root.keys.push_back(zero_keys());
    root.keys.push_back(count("num_accumulation_steps"));
    root.keys.push_back(activation_checkpoint());
    for (ConfigKey& key : saved_stages()) root.keys.push_back(std::move(key));
  }
  return root;
}

ConfigDialect config_dialect(const Json& document) {
  ConfigDialect found = ConfigDialect::none;
  std::string found_key;
  for (const DialectKeys& each : kDialects) {
    std::string key = each.keys().name;
    if (!document.is_object() || !document.contains(key)) {
      continue;
    }
    OSLO_CHECK_AS(config, found == ConfigDialect::none,
                  "two dialects in one config: ", in_quotes(found_key), " is ", to_string(found),
                  "'s, ", in_quotes(key), " is ", to_string(each.dialect), "'s; keep one of them");
    found = each.dialect;
    found_key = key;
  }
  return found;
}

}  // namespace oslo
