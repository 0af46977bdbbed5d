#include "oslo_cpp/config/config_dialects.h"

#include "mpu/base/bytes.h"
#include "mpu/base/error.h"
#include "oslo_cpp/config/config_json.h"
#include "oslo_cpp/config/config_schema.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
T value_or(const Json& object, const char* key, T otherwise) {
  const Json& value = json_member(object, key);
  return value.is_null() ? otherwise : value.get<T>();
}

template <typename T>
std::optional<T> maybe(const Json& object, const char* key) {
  const Json& value = json_member(object, key);
  return value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

// Colossal-AI's `n` or `{"size": n}` or null.
std::optional<int> size_of(const Json& sized) {
  if (sized.is_number()) {
    return sized.get<int>();
  }
  return maybe<int>(sized, "size");
}

/// What LiBai's dialect has in its own objects, and the others at the top.
void read_saved_stages(const Json& object, ConfigValues& values) {
  values.auto_pipeline_stage_id = maybe<std::vector<int>>(object, "auto_pipeline_stage_id");
  values.actual_pipeline_stage_id = maybe<std::vector<int>>(object, "actual_pipeline_stage_id");
}

void read_zero(const Json& zero, ConfigValues& values) {
  values.zero_optimization = value_or(zero, "enabled", false);
  values.zero_stage = value_or(zero, "stage", 1);
  values.zero_shard_size = maybe<int>(zero, "shard_size");
  values.zero_reshard = maybe<bool>(zero, "reshard");
  values.zero_copies_per_host = maybe<int>(zero, "copies_per_host");
}

void read_amp(const Json& amp, ConfigValues& values) {
  values.amp = value_or(amp, "enabled", false);
  values.amp_dtype = value_or(amp, "dtype", std::string("bfloat16"));
}

void read_oslo(const Json& model_parallelism, ConfigValues& values) {
  values.enabled = value_or(model_parallelism, "enable", true);
  values.tensor_parallel_size = value_or(model_parallelism, "tensor_parallel_size", 1);
  values.pipeline_parallel_size = value_or(model_parallelism, "pipeline_parallel_size", 1);
  values.num_model_chunks = maybe<int>(model_parallelism, "num_model_chunks");
  values.pipeline_schedule = maybe<std::string>(model_parallelism, "pipeline_schedule");
}

/// A number of bytes, or a text of one.
std::optional<int64_t> bytes_at(const Json& object, const char* key) {
  const Json& value = json_member(object, key);
  if (value.is_string()) return parse_bytes(value.get_ref<const std::string&>());
  return value.is_null() ? std::nullopt : std::optional(value.get<int64_t>());
}

void read_activation_checkpoint(const Json& object, ConfigValues& values) {
  values.activation_memory = bytes_at(object, "memory");
  values.activation_checkpoint = value_or(object, "enabled", values.activation_memory.has_value());
  values.activation_every = value_or(object, "every", 1);
  values.activation_modules = value_or(object, "modules", std::vector<std::string>());
  values.activation_keep = value_or(object, "keep", std::vector<std::string>());
  values.activation_keep_at_most = value_or(object, "keep_at_most", 1.0);
  values.activation_offload = value_or(object, "offload", false);
  values.activation_ahead = bytes_at(object, "offload_ahead");
}

void read_libai(const Json& train, ConfigValues& values) {
  const Json& dist = json_member(train, "dist");
  values.data_parallel_size = maybe<int>(dist, "data_parallel_size");
  values.tensor_parallel_size = value_or(dist, "tensor_parallel_size", 1);
  values.pipeline_parallel_size = value_or(dist, "pipeline_parallel_size", 1);
  values.num_model_chunks = maybe<int>(dist, "num_model_chunks");
  values.pipeline_schedule = maybe<std::string>(dist, "pipeline_schedule");
  values.pipeline_num_layers = maybe<int>(dist, "pipeline_num_layers");
  values.custom_pipeline_stage_id = maybe<std::vector<int>>(dist, "custom_pipeline_stage_id");
  read_saved_stages(dist, values);
  values.num_accumulation_steps = value_or(train, "num_accumulation_steps", 1);
  read_activation_checkpoint(json_member(train, "activation_checkpoint"), values);
  read_zero(json_member(train, "zero_optimization"), values);
  read_amp(json_member(train, "amp"), values);
}

void read_colossal_ai(const Json& parallel, ConfigValues& values) {
  const Json& tensor = json_member(parallel, "tensor");
  values.data_parallel_size = size_of(json_member(parallel, "data"));
  values.tensor_parallel_size = size_of(tensor).value_or(1);
  values.pipeline_parallel_size = size_of(json_member(parallel, "pipeline")).value_or(1);
  values.num_model_chunks = maybe<int>(json_member(parallel, "pipeline"), "num_model_chunks");
  values.pipeline_schedule = maybe<std::string>(json_member(parallel, "pipeline"), "schedule");
  values.tensor_mode = maybe<std::string>(tensor, "mode");
  values.depth = maybe<int>(tensor, "depth");
  if (!values.depth) {
    values.depth = maybe<int>(json_member(tensor, "kwargs"), "depth");
  }
  values.keep_gathered = value_or(tensor, "keep_gathered", false);
}

void read_scaling(const Json& fp16, EngineKeys& engine) {
  engine.init_scale = maybe<double>(fp16, "init_scale");
  engine.growth_factor = maybe<double>(fp16, "growth_factor");
  engine.backoff_factor = maybe<double>(fp16, "backoff_factor");
  engine.growth_interval = maybe<int>(fp16, "growth_interval");
}

/// Colossal-AI's names at the top.
void read_engine(const Json& document, ConfigValues& values) {
  EngineKeys& engine = values.engine;
  engine.gradient_accumulation = value_or(document, "gradient_accumulation", 1);
  engine.clip_grad_norm = value_or(document, "clip_grad_norm", 0.0);
  for (const Json& handler : json_member(document, "gradient_handler")) {
    engine.gradient_handlers.push_back(value_or(handler, "type", std::string()));
  }
  if (const auto number = maybe<int>(document, "NUM_MICRO_BATCHES")) {
    values.names_micro_batches = true;
    values.num_accumulation_steps = *number;
  }
}

SequenceAttention read_attention(const Json& document) {
  const auto form = value_or(document, "context_attention", std::string("auto"));
  if (form == "gather") return SequenceAttention::gather;
  if (form == "ulysses") return SequenceAttention::ulysses;
  return form == "ring" ? SequenceAttention::ring : SequenceAttention::automatic;
}

}  // namespace

std::string to_string(ConfigDialect dialect) {
  switch (dialect) {
    case ConfigDialect::oslo:
      return "OSLO";
    case ConfigDialect::libai:
      return "LiBai";
    case ConfigDialect::colossal_ai:
      return "Colossal-AI";
    case ConfigDialect::none:
      break;
  }
  return "no dialect";
}

std::string stage_ids_path(ConfigDialect dialect, const char* which) {
  return c10::str(dialect == ConfigDialect::libai ? "train.dist." : "", which,
                  "_pipeline_stage_id");
}

SizeNames size_names(ConfigDialect dialect) {
  if (dialect == ConfigDialect::colossal_ai) {
    return {"parallel.data", "parallel.tensor", "parallel.pipeline", "parallel.tensor.mode",
            "parallel.tensor.depth"};
  }
  std::string base = dialect == ConfigDialect::libai ? "train.dist." : "model_parallelism.";
  return {base + "data_parallel_size", base + "tensor_parallel_size",
          base + "pipeline_parallel_size", "", ""};
}

ConfigValues read_values(const Json& document) {
  ConfigValues values;
  values.dialect = config_dialect(document);
  read_oslo(json_member(document, "model_parallelism"), values);
  if (values.dialect == ConfigDialect::libai) {
    read_libai(json_member(document, "train"), values);
  } else {
    values.num_accumulation_steps = value_or(document, "num_accumulation_steps", 1);
    read_amp(json_member(document, "amp"), values);
    read_zero(json_member(document, "zero_optimization"), values);
    read_activation_checkpoint(json_member(document, "activation_checkpoint"), values);
    read_saved_stages(document, values);
  }
  if (values.dialect == ConfigDialect::colossal_ai) {
    read_colossal_ai(json_member(document, "parallel"), values);
  }
  if (const Json& fp16 = json_member(document, "fp16"); !fp16.is_null()) {  // Colossal-AI's
    values.amp = value_or(fp16, "enabled", true);
    values.amp_dtype = "float16";
    if (values.amp) read_scaling(fp16, values.engine);
  }
  if (auto order = maybe<std::string>(document, "rank_order")) {
    values.rank_order = parse_rank_order(*order);
  }
  if (auto backend = maybe<std::string>(document, "backend")) {
    values.backend = parse_transport(*backend);
  }
  if (auto timeout = maybe<int>(document, "timeout")) {
    values.timeout = std::chrono::seconds(*timeout);
  }
  values.master_weights = value_or(document, "master_weights", false);
  values.reduce_dtype = value_or(document, "reduce_dtype", std::string("float32"));
  read_engine(document, values);
  values.kernel_fusion = value_or(document, "kernel_fusion", false);
  values.strict = value_or(document, "strict", false);
  values.sequence_parallel = value_or(document, "sequence_parallel", false);
  values.context_parallel_size = value_or(document, "context_parallel_size", 1);
  values.context_attention = read_attention(document);
  const bool head_tail = value_or(document, "context_order", std::string()) == "head_tail";
  values.context_order = head_tail ? SequenceOrder::head_tail : SequenceOrder::contiguous;
  values.balance_stages = maybe<std::string>(document, "balance_stages");
  for (const auto& [pattern, placement] : json_member(document, "plan").items()) {
    values.plan.emplace_back(pattern, placement.get<std::string>());
  }
  for (const auto& [pattern, stages] : json_member(document, "stages").items()) {
    values.stages.emplace_back(pattern, stages.is_array() ? stages.get<std::vector<int>>()
                                                          : std::vector{stages.get<int>()});
  }
  return values;
}

/// Where the dialect has amp; what stands there means nothing alone.
void check_amp(const Json& document, const ConfigValues& values) {
  const bool libai = values.dialect == ConfigDialect::libai;
  const Json& amp = json_member(libai ? json_member(document, "train") : document, "amp");
  const char* const path = libai ? "train.amp" : "amp";
  OSLO_CHECK_AS(config, !amp.is_object() || amp.contains("enabled"), "'", path,
                "' does not say whether it is enabled: add \"enabled\": true");
  OSLO_CHECK_AS(config, amp.is_null() || json_member(document, "fp16").is_null(), "'", path,
                "' and 'fp16' both say what to compute in: keep one of them");
}

void check_engine(const Json& document, const ConfigValues& values) {
  OSLO_CHECK_AS(config, !values.names_micro_batches || !document.contains("num_accumulation_steps"),
                "'NUM_MICRO_BATCHES' and 'num_accumulation_steps' both say into how many "
                "micro-batches a batch is divided: keep one of them");
  const auto& handlers = values.engine.gradient_handlers;
  for (size_t i = 0; i < handlers.size(); ++i) {
    OSLO_CHECK_AS(config, !handlers[i].empty(), "'gradient_handler[", i,
                  "]' has no type: add \"type\": \"DataParallelGradientHandler\"");
  }
}

void check_complete(const Json& document) {
  ConfigValues values = read_values(document);
  check_amp(document, values);
  check_engine(document, values);
  if (values.dialect != ConfigDialect::colossal_ai) {
    return;
  }
  const Json& parallel = json_member(document, "parallel");
  for (const auto& [name, sized] : parallel.items()) {
    OSLO_CHECK_AS(config, !sized.is_object() || sized.contains("size"), "'parallel.", name,
                  "' has no size: add \"size\": n");
  }
  const Json& tensor = json_member(parallel, "tensor");
  int size = values.tensor_parallel_size;
  OSLO_CHECK_AS(config, size == 1 || values.tensor_mode, "'parallel.tensor' has size ", size,
                " and no mode: write {\"size\": ", size,
                ", \"mode\": \"1d\"}, or another mode of 1d, "
                "2d, 2.5d, 3d, sequence");
  bool twice = tensor.is_object() && tensor.contains("depth") &&
               json_member(tensor, "kwargs").is_object() && tensor["kwargs"].contains("depth");
  OSLO_CHECK_AS(config, !twice,
                "'parallel.tensor.depth' and 'parallel.tensor.kwargs.depth' are both given: "
                "keep one of them");
  bool mode_2p5d = values.tensor_mode == "2.5d";
  OSLO_CHECK_AS(config, !mode_2p5d || values.depth,
                "'parallel.tensor' has mode 2.5d and no depth: add "
                "\"depth\": d, where size = q * q * d");
  OSLO_CHECK_AS(config, mode_2p5d || !values.depth, "'parallel.tensor' has depth ",
                values.depth.value_or(0), ", which belongs to mode 2.5d; the mode is ",
                values.tensor_mode.value_or("not given"),
                ": set the mode to 2.5d or remove the depth");
  OSLO_CHECK_AS(config, mode_2p5d || values.tensor_mode == "2d" || !values.keep_gathered,
                "'parallel.tensor' has keep_gathered, which belongs to modes 2d and 2.5d; the mode "
                "is ",
                values.tensor_mode.value_or("not given"),
                ": set the mode to one of the two or remove keep_gathered");
}

}  // namespace oslo
