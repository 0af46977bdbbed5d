// Config::resolve: from what a user wrote to sizes that a world can have.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "mpu/base/error.h"
#include "oslo_cpp/config/config.h"
#include "oslo_cpp/config/config_dialects.h"
#include "oslo_cpp/config/engine_keys.h"
#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {
namespace {

int64_t power(int64_t base, int degree) {
  return degree == 0 ? 1 : base * power(base, degree - 1);
}

// The largest q with q^degree <= value.
int root(int value, int degree) {
  int q = 0;
  while (power(q + 1, degree) <= value) {
    ++q;
  }
  return q;
}
bool is_power(int value, int degree) {
  return power(root(value, degree), degree) == value;
}

bool fits_mode(int tensor, const std::string& mode, int depth) {
  if (mode == "2d") {
    return is_power(tensor, 2);
  }
  if (mode == "2.5d") {
    return tensor % depth == 0 && is_power(tensor / depth, 2);
  }
  return mode != "3d" || is_power(tensor, 3);
}

void check_mode(int tensor, const std::string& mode, int depth, const SizeNames& names) {
  if (fits_mode(tensor, mode, depth)) {
    return;
  }
  int q = std::max(1, root(tensor / depth, 2));
  if (mode == "2d") {
    fail_as(ErrorKind::config, "mode 2d needs a square '", names.tensor, "' (q * q), seen ", tensor,
            ": set it to ", q * q, " or ", (q + 1) * (q + 1), ", or the mode to 1d");
  }
  if (mode == "2.5d") {
    fail_as(ErrorKind::config, "mode 2.5d needs '", names.tensor, "' = q * q * depth, seen size ",
            tensor, " and depth ", depth, ": with this depth set it to ", q * q * depth, " or ",
            (q + 1) * (q + 1) * depth, ", or the mode to 1d");
  }
  q = root(tensor, 3);
  fail_as(ErrorKind::config, "mode 3d needs a cube '", names.tensor, "' (q * q * q), seen ", tensor,
          ": set it to ", q * q * q, " or ", (q + 1) * (q + 1) * (q + 1), ", or the mode to 1d");
}

/// Colossal-AI's mode is the same thing under another name.
void check_context(const ConfigValues& values, const std::string& mode, const SizeNames& names) {
  OSLO_CHECK_AS(config, values.context_parallel_size == 1 || mode != "sequence", "'", names.mode,
                "' = sequence and 'context_parallel_size' = ", values.context_parallel_size,
                " both cut the sequence: keep one of them");
}

/// LiBai's users say how many layers there are.
void check_layers(const ConfigValues& values) {
  const bool said = values.pipeline_num_layers || values.custom_pipeline_stage_id ||
                    values.actual_pipeline_stage_id || !values.stages.empty();
  OSLO_CHECK_AS(
      config, said || values.dialect != ConfigDialect::libai || values.pipeline_parallel_size == 1,
      "'train.dist.pipeline_parallel_size' = ", values.pipeline_parallel_size,
      " needs 'train.dist.pipeline_num_layers', as in LiBai: set it to the number of layers "
      "of the model");
}

void check_stages(const ConfigValues& values) {
  if (!values.custom_pipeline_stage_id) {
    return;
  }
  constexpr const char* kName = "'train.dist.custom_pipeline_stage_id'";
  OSLO_CHECK_AS(config, !values.balance_stages, kName,
                " and 'balance_stages' = ", values.balance_stages.value_or(""),
                " both divide the layers: keep one of them");
  const auto& actual = values.actual_pipeline_stage_id;
  OSLO_CHECK_AS(
      config, !actual || *actual == *values.custom_pipeline_stage_id, kName,
      " differs from 'train.dist.actual_pipeline_stage_id', which initialize wrote into a "
      "saved config: remove the latter");
  const std::vector<int>& stages = *values.custom_pipeline_stage_id;
  int layers = values.pipeline_num_layers.value_or(static_cast<int>(stages.size()));
  OSLO_CHECK_AS(config, static_cast<int>(stages.size()) == layers, kName, " has ", stages.size(),
                " entries, 'train.dist.pipeline_num_layers' is ", layers,
                ": give one stage for each layer");
  const int chunks = pipeline_shape(values).chunks;
  int last = values.pipeline_parallel_size * chunks - 1;
  for (size_t i = 0; i < stages.size(); ++i) {
    int before = i == 0 ? 0 : stages[i - 1];
    OSLO_CHECK_AS(config, stages[i] <= last, kName, " puts layer ", i, " on stage ", stages[i],
                  ", but with ",
                  "'train.dist.pipeline_parallel_size' = ", values.pipeline_parallel_size,
                  chunks == 1 ? "" : c10::str(" and ", chunks, " stages a rank"),
                  " the last stage is ", last);
    OSLO_CHECK_AS(config, stages[i] == before || (i > 0 && stages[i] == before + 1), kName, " has ",
                  stages[i], i == 0 ? " first" : c10::str(" after ", before), " at layer ", i,
                  ": stages start at 0 and grow by one at a time");
  }
  OSLO_CHECK_AS(config, !stages.empty() && stages.back() == last, kName, " leaves stage ", last,
                " without a layer: use every stage from 0 to ", last);
}

// The sizes nearest to those asked for that fit the world, as text.
std::string nearest_sizes(const ConfigValues& values, const std::string& mode, int depth,
                          int world_size) {
  int best_tensor = 0, best_pipeline = 0, best_distance = 0;
  if (world_size % values.context_parallel_size != 0) return "";
  world_size /= values.context_parallel_size;
  for (int tensor = 1; tensor <= world_size; ++tensor) {
    if (world_size % tensor != 0 || !fits_mode(tensor, mode, depth)) {
      continue;
    }
    for (int pipeline = 1; pipeline <= world_size / tensor; ++pipeline) {
      if (world_size / tensor % pipeline != 0) continue;
      int distance = std::abs(tensor - values.tensor_parallel_size) +
                     std::abs(pipeline - values.pipeline_parallel_size);
      // Of two as near, the one with fewer stages.
      if (best_tensor == 0 ||
          std::pair(distance, pipeline) < std::pair(best_distance, best_pipeline)) {
        best_tensor = tensor, best_pipeline = pipeline, best_distance = distance;
      }
    }
  }
  if (best_tensor == 0) {
    return "";
  }
  return c10::str(
      "; the nearest choice that works is data ", world_size / best_tensor / best_pipeline,
      values.context_parallel_size == 1 ? ""
                                        : c10::str(" x context ", values.context_parallel_size),
      " x tensor ", best_tensor, " x pipeline ", best_pipeline);
}

void check_world(const ConfigValues& values, const std::string& mode, int depth,
                 const SizeNames& names, int world_size) {
  int64_t tensor = values.tensor_parallel_size;
  int64_t pipeline = values.pipeline_parallel_size;
  int64_t context = values.context_parallel_size;
  int64_t product = tensor * pipeline * context * values.data_parallel_size.value_or(1);
  bool given = values.data_parallel_size.has_value();
  if (given ? product == world_size : world_size % product == 0) {
    return;
  }
  std::string data =
      given ? c10::str("'", names.data, "' ", *values.data_parallel_size, " x ") : "";
  fail_as(ErrorKind::config, "the sizes do not fit the world: ", data, "'", names.tensor, "' ",
          tensor, context == 1 ? "" : c10::str(" x 'context_parallel_size' ", context), " x '",
          names.pipeline, "' ", pipeline, " = ", product,
          given ? ", but the world size is " : ", which does not divide the world size ",
          world_size, nearest_sizes(values, mode, depth, world_size), "; or start ",
          given ? "" : "a multiple of ", product, product == 1 ? " process" : " processes");
}

void check_share(const ConfigValues& values, const char* below) {
  const double share = values.activation_keep_at_most;
  OSLO_CHECK_AS(config, share > 0 && share <= 1, "'", below,
                "activation_checkpoint.keep_at_most' = ", share,
                ": give the share of bytes that may be kept, above 0 and up to 1");
  OSLO_CHECK_AS(config, share == 1 || !values.activation_keep.empty(), "'", below,
                "activation_checkpoint.keep_at_most' = ", share,
                " beside no 'keep': say what is to be kept, as in \"keep\": [\"matmul\", "
                "\"attention\"]");
}

void check_features(const ConfigValues& values) {
  const char* const below = values.dialect == ConfigDialect::libai ? "train." : "";
  check_handlers(values.engine);
  OSLO_CHECK_AS(config, !values.activation_memory || values.activation_checkpoint, "'", below,
                "activation_checkpoint.memory' is kept by computing activations again, and '",
                below,
                "activation_checkpoint.enabled' is false: set it to true, or leave 'memory' "
                "out");
  check_share(values, below);
  OSLO_CHECK_AS(
      config, !values.activation_offload || !values.activation_checkpoint, "'", below,
      "activation_checkpoint.offload' moves to the host what 'enabled' beside it computes "
      "again: set one of the two to false; to compute some layers again and move the "
      "rest, leave 'enabled' out and write oslo::checkpoint around those");
  OSLO_CHECK_AS(
      config, !values.activation_ahead || values.activation_offload, "'", below,
      "activation_checkpoint.offload_ahead' is what stays on the device of what 'offload' "
      "moves, and 'offload' is false: set it to true, or leave 'offload_ahead' out");
}

}  // namespace

PipelineShape pipeline_shape(const ConfigValues& values) {
  const int asked = values.num_model_chunks.value_or(0);
  PipelineShape shape;
  shape.kind = values.pipeline_schedule.value_or(asked > 1 ? "interleaved" : "1f1b");
  try {
    shape.chunks = static_cast<int>(pipeline::rank_of_stage(shape.kind, 1, asked).size());
  } catch (const Error& error) {
    fail_as(ErrorKind::config, "'num_model_chunks' = ", asked, ": ", error.what());
  }
  return shape;
}

ParallelSizes Config::resolve(int world_size) const {
  OSLO_CHECK_AS(config, world_size >= 1, "a world has at least 1 process, seen size ", world_size);
  check_complete(*document_);
  ParallelSizes sizes;
  sizes.rank_order = values_.rank_order;
  sizes.backend = values_.backend;
  sizes.timeout = values_.timeout;
  sizes.enabled = values_.enabled;
  if (!values_.enabled) {
    const std::string asked =
        values_.amp                         ? "'amp.enabled' = true"
        : values_.master_weights            ? "'master_weights' = true"
        : values_.activation_checkpoint     ? "'activation_checkpoint.enabled' = true"
        : values_.reduce_dtype != "float32" ? "'reduce_dtype' = " + values_.reduce_dtype
                                            : "";
    OSLO_CHECK_AS(config, asked.empty(), asked,
                  " beside 'model_parallelism.enable' = false, which leaves the model as it "
                  "is: set 'model_parallelism.enable' to true, which at size 1 cuts nothing");
    sizes.data = world_size;
    return sizes;
  }
  SizeNames names = size_names(values_.dialect);
  sizes.tensor = values_.tensor_parallel_size;
  sizes.pipeline = values_.pipeline_parallel_size;
  sizes.tensor_mode = values_.tensor_mode.value_or("1d");
  sizes.depth = values_.depth.value_or(1);
  check_mode(sizes.tensor, sizes.tensor_mode, sizes.depth, names);
  check_stages(values_);
  check_context(values_, sizes.tensor_mode, names);
  check_world(values_, sizes.tensor_mode, sizes.depth, names, world_size);
  check_layers(values_);
  const int chunks = pipeline_shape(values_).chunks;
  OSLO_CHECK_AS(config, static_cast<int64_t>(sizes.pipeline) * chunks <= StageSet::kMost, "'",
                names.pipeline, "' = ", sizes.pipeline,
                chunks == 1 ? "" : c10::str(" with ", chunks, " stages a rank"), ": ",
                StageSet::kMost, " stages are possible");
  check_features(values_);
  sizes.context = values_.context_parallel_size;
  if (sizes.tensor_mode == "sequence") sizes.context = std::exchange(sizes.tensor, 1);
  sizes.data = world_size / (sizes.tensor * sizes.context * sizes.pipeline);
  return sizes;
}

}  // namespace oslo
