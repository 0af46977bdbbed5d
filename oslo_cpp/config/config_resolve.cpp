// Config::resolve: from what a user wrote to sizes that a world can have.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "mpu/base/error.h"
#include "oslo_cpp/config/config.h"
#include "oslo_cpp/config/config_dialects.h"
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

// What of these sizes the library cannot do yet; empty if nothing.
std::string missing(int tensor, const std::string& mode, const SizeNames& names) {
  if (tensor > 1 && mode != "1d") {
    return c10::str("'", names.mode, "' = ", mode, " with size ", tensor,
                    " is not there yet: set the mode to 1d");
  }
  return "";
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

// The sizes nearest to those asked for that fit the world and that the library can do, as text.
std::string nearest_sizes(const ConfigValues& values, const std::string& mode, int depth,
                          const SizeNames& names, int world_size) {
  int best_tensor = 0, best_pipeline = 0, best_distance = 0;
  for (int tensor = 1; tensor <= world_size; ++tensor) {
    if (world_size % tensor != 0 || !fits_mode(tensor, mode, depth)) {
      continue;
    }
    if (!missing(tensor, mode, names).empty()) continue;
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
  return c10::str("; the nearest choice that works is data ",
                  world_size / best_tensor / best_pipeline, " x tensor ", best_tensor,
                  " x pipeline ", best_pipeline);
}

void check_world(const ConfigValues& values, const std::string& mode, int depth,
                 const SizeNames& names, int world_size) {
  int64_t tensor = values.tensor_parallel_size;
  int64_t pipeline = values.pipeline_parallel_size;
  int64_t product = tensor * pipeline * values.data_parallel_size.value_or(1);
  bool given = values.data_parallel_size.has_value();
  if (given ? product == world_size : world_size % product == 0) {
    return;
  }
  std::string data =
      given ? c10::str("'", names.data, "' ", *values.data_parallel_size, " x ") : "";
  fail_as(ErrorKind::config, "the sizes do not fit the world: ", data, "'", names.tensor, "' ",
          tensor, " x '", names.pipeline, "' ", pipeline, " = ", product,
          given ? ", but the world size is " : ", which does not divide the world size ",
          world_size, nearest_sizes(values, mode, depth, names, world_size), "; or start ",
          given ? "" : "a multiple of ", product, product == 1 ? " process" : " processes");
}

/// What Colossal-AI's engine does between and in its steps; loops here are the program's own.
void check_engine(const ConfigValues& values) {
  const int batches = values.gradient_accumulation;
  OSLO_CHECK_AS(
      config, batches == 1, "'gradient_accumulation' = ", batches,
      " is done by Colossal-AI's engine, which is not there yet: set it to 1, and run the "
      "first ",
      batches - 1, " of ", batches, " batches under ddp.no_sync(), each with loss / ", batches,
      ", or all of them as one by an oslo::PipelineSchedule with "
      "\"num_accumulation_steps\": ",
      batches);
  OSLO_CHECK_AS(config, values.clip_grad_norm == 0, "'clip_grad_norm' = ", values.clip_grad_norm,
                " is done by Colossal-AI's engine, which is not there yet: set it to 0, and write "
                "parallel.clip_grad_norm_(",
                values.clip_grad_norm, "); in front of optimizer.step()");
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
  auto refuse = [](bool asked, const char* key, const char* seen, const char* instead) {
    OSLO_CHECK_AS(config, !asked, "'train.", key, "' = ", seen, " is not there yet: set it to ",
                  instead);
  };
  refuse(values.zero_optimization, "zero_optimization.enabled", "true", "false");
  check_engine(values);
  const char* const below = values.dialect == ConfigDialect::libai ? "train." : "";
  OSLO_CHECK_AS(config, !values.activation_memory || values.activation_checkpoint, "'", below,
                "activation_checkpoint.memory' is kept by computing activations again, and '",
                below,
                "activation_checkpoint.enabled' is false: set it to true, or leave 'memory' "
                "out");
  check_share(values, below);
  OSLO_CHECK_AS(
      config, !values.activation_checkpoint || !values.kernel_fusion, "'", below,
      "activation_checkpoint.enabled' = true beside 'kernel_fusion' is not there yet: set "
      "one of the two to false");
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
  check_world(values_, sizes.tensor_mode, sizes.depth, names, world_size);
  check_layers(values_);
  const int chunks = pipeline_shape(values_).chunks;
  OSLO_CHECK_AS(config, static_cast<int64_t>(sizes.pipeline) * chunks <= StageSet::kMost, "'",
                names.pipeline, "' = ", sizes.pipeline,
                chunks == 1 ? "" : c10::str(" with ", chunks, " stages a rank"), ": ",
                StageSet::kMost, " stages are possible");
  std::string not_yet = missing(sizes.tensor, sizes.tensor_mode, names);
  OSLO_CHECK_AS(config, not_yet.empty(), not_yet);
  check_features(values_);
  sizes.data = world_size / (sizes.tensor * sizes.pipeline);
  return sizes;
}

}  // namespace oslo
