#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mpu/grid/rank_order.h"
#include "mpu/transport/backends/transport.h"
#include "parallelizers/placement/layout/sequence_attention.h"

namespace oslo {

/// Whose names a config uses. `none` holds no dialect's key yet: everything has its default.
enum class ConfigDialect { none, oslo, libai, colossal_ai };

/// "OSLO", "LiBai", "Colossal-AI", or "no dialect".
std::string to_string(ConfigDialect dialect);

/// The sizes of the axes in a world of known size. `data * tensor * context * pipeline` is the
/// world size.
struct ParallelSizes {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  int context = 1;                 ///< also of Colossal-AI's mode "sequence", whose tensor is 1
  std::string tensor_mode = "1d";  ///< "1d", "2d", "2.5d", "3d" or "sequence"
  int depth = 1;                   ///< the d of 2.5d (tensor = q * q * d), 1 for every other mode
  RankOrder rank_order = RankOrder::pp_dp_tp;
  Transport backend = Transport::automatic;
  std::optional<std::chrono::seconds> timeout;  ///< unset: the world's
  bool enabled = true;  ///< false: leave the model untouched; then tensor and pipeline are 1

  /// Whether the tensor ranks form a grid of their own (plan/search/grid_plan.h).
  bool over_grid() const { return tensor > 1 && tensor_mode.ends_with('d') && tensor_mode != "1d"; }
};

struct ConfigValues;

/// How a config divides a pipeline.
struct PipelineShape {
  std::string kind = "1f1b";  ///< of schedule; it decides which stages a rank has
  int chunks = 1;             ///< stages a rank
};

/// By the kind alone a rank has as many stages as that usually has; by the number of stages alone 2
/// and more are interleaved. Throws where the kind does not have that number.
PipelineShape pipeline_shape(const ConfigValues& values);

/// What Colossal-AI's engine reads (engine/engine.h); a loop without one does it by itself.
struct EngineKeys {
  int gradient_accumulation = 1;  ///< batches of a step
  double clip_grad_norm = 0;      ///< the norm that a step clips gradients to; 0: none
  /// By their classes' names there; empty: DistributedDataParallel averages gradients.
  std::vector<std::string> gradient_handlers;
  /// Of the loss, for float16; unset: GradScalerOptions' own.
  std::optional<double> init_scale, growth_factor, backoff_factor;
  std::optional<int> growth_interval;
};

/// Everything a config says, in the same words whichever dialect it was written in. A field that a
/// dialect has no key for holds its default.
struct ConfigValues {
  ConfigDialect dialect = ConfigDialect::none;
  bool enabled = true;
  std::optional<int> data_parallel_size;  ///< unset: inferred from the world
  int tensor_parallel_size = 1;
  int pipeline_parallel_size = 1;
  int context_parallel_size = 1;  ///< ranks that hold parts of the sequence
  SequenceAttention context_attention = SequenceAttention::automatic;
  SequenceOrder context_order = SequenceOrder::contiguous;
  std::optional<std::string> tensor_mode;  ///< unset: "1d"
  std::optional<int> depth;                ///< 2.5d only
  bool keep_gathered = false;              ///< 2d and 2.5d only; see plan/search/grid_plan.h
  RankOrder rank_order = RankOrder::pp_dp_tp;
  Transport backend = Transport::automatic;
  std::optional<std::chrono::seconds> timeout;  ///< how long ranks wait for each other
  bool kernel_fusion = false;                   ///< see placement/engine/kernel_fusion.h
  bool strict = false;                          ///< see explain/strict_gathers.h
  /// Values between layers lie cut along the sequence; see plan/search/sequence_plan.h.
  bool sequence_parallel = false;
  /// (pattern, "column" | "row" | "vocab" | "replicate") in the order written.
  std::vector<std::pair<std::string, std::string>> plan;
  /// (pattern, pipeline stages) in the order written; see stages/stage_plan.h.
  std::vector<std::pair<std::string, std::vector<int>>> stages;

  std::optional<int> num_model_chunks;           ///< stages a rank; see PipelineShape
  std::optional<std::string> pipeline_schedule;  ///< a kind (pipeline/schedule/order/kinds.h)
  /// "time" or "memory": what stages are balanced by (plan/search/stage_balance.h).
  std::optional<std::string> balance_stages;

  std::optional<int> pipeline_num_layers;
  std::optional<std::vector<int>> custom_pipeline_stage_id;  ///< one stage per layer
  /// What `initialize` wrote into a saved config, a stage a layer: by LiBai's rule, and in truth.
  std::optional<std::vector<int>> auto_pipeline_stage_id, actual_pipeline_stage_id;
  int num_accumulation_steps = 1;               ///< micro-batches of a PipelineSchedule
  bool names_micro_batches = false;             ///< by Colossal-AI's NUM_MICRO_BATCHES
  EngineKeys engine;                            ///< what Colossal-AI's engine reads
  bool activation_checkpoint = false;           ///< see memory/recompute/layer_segments.h
  int activation_every = 1;                     ///< layers a segment
  std::vector<std::string> activation_modules;  ///< patterns of what counts as a layer
  std::vector<std::string> activation_keep;     ///< kinds of operators (kept_kinds.h)
  double activation_keep_at_most = 1;           ///< of the bytes that layers save
  std::optional<int64_t> activation_memory;     ///< bytes of a rank (segment_budget.h)
  bool activation_offload = false;              ///< to the host (memory/offload/)
  std::optional<int64_t> activation_ahead;      ///< bytes that stay on the device meanwhile
  bool zero_optimization = false;
  int zero_stage = 1;
  std::optional<int> zero_shard_size;       ///< data ranks that have the weights once (stage 3)
  std::optional<bool> zero_reshard;         ///< whole weights of stage 3 go when a forward is done
  std::optional<int> zero_copies_per_host;  ///< of the weights of stage 3: 1, or 0 to gather
  bool amp = false;                         ///< the forward runs under autocast
  std::string amp_dtype = "bfloat16";       ///< or "float16"
  bool master_weights = false;
  std::string reduce_dtype = "float32";  ///< or "bfloat16", "float16"
};

}  // namespace oslo
