#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "mpu/base/ledger.h"
#include "parallelizers/placement/layout/gather_report.h"

namespace oslo {

/// One parameter of the model, before and after.
struct PlanEntry {
  std::string parameter;      ///< "h.0.attn.c_attn.weight": name of the unparallelized model
  std::string module;         ///< "h.0.attn.c_attn"
  std::string module_before;  ///< "torch::nn::Linear"
  std::string module_after;   ///< "oslo::nn::ColumnParallelLinear"
  std::string placement;      ///< "column: shard(0, blocks 3)"
  std::string why;
  std::vector<int64_t> global_shape;
  std::vector<int64_t> local_shape;
  int64_t local_bytes = 0;
  int64_t global_bytes = 0;
  bool trains = true;  ///< it gets a gradient
  /// Of what is registered under this name where the model computes with another tensor:
  /// `head->weight = wte->weight` leaves it in `parameters()`, where nothing uses it.
  int64_t unused_bytes = 0;
  int stage = 0;            ///< of a pipeline; the first, where several have a copy
  std::vector<int> stages;  ///< all of them; empty without a pipeline
  std::string tied_to;      ///< the first name of the same tensor, if this is not it
};

/// One line of traffic: which group, collective and rule.
struct PlanTraffic {
  std::string group;
  LedgerEntry entry;
};

/// The ranks of the world that share one axis: a row a group.
struct PlanAxis {
  std::string name;  ///< "data", "pipeline", "tensor"
  std::vector<std::vector<int>> groups;
};

/// What a rank of a pipeline stage would hold in a step, foreseen from the example's forward on
/// shapes, in bytes; not all of it at the same time.
struct StageMemory {
  int64_t parameters = 0;  ///< and buffers
  int64_t gradients = 0;
  int64_t states = 0;      ///< an optimizer's
  int64_t kept = 0;        ///< activations that wait for backward, where nothing is computed again
  int64_t kept_least = 0;  ///< where everything is, or is moved to the host
  int64_t peak = 0;        ///< where nothing is computed again
  std::string at;          ///< when
  int64_t least = 0;       ///< where everything is, or is moved
  std::string least_at;    ///< when
  int64_t within = 0;      ///< the peak within the budget; 0: it does not fit, or there is none
  int64_t segments = 0;    ///< in all
  int64_t again = 0;       ///< those that are computed again within the budget
};

/// The most that a rank holds in a step, where there is a budget (memory/budget/).
struct PlanMemory {
  int64_t budget = 0;               ///< bytes; 0: there is none
  int64_t peak = 0;                 ///< that is expected; 0: nothing is known yet
  std::string at;                   ///< when: "backward of h.3"
  std::vector<StageMemory> stages;  ///< of `oslo plan --memory`
};

/// What the plan expects of a step, from its example's shapes and the machine's rates (rates.h).
/// Made only where the search ran.
struct PlanForecast {
  double step = 0;              ///< seconds of forward and backward on a rank; 0: not known
  double collectives = 0;       ///< of those, seconds in collectives
  double one_device = 0;        ///< seconds where one rank has the whole model and the same batch
  int64_t parameter_bytes = 0;  ///< of parameters and gradients on a rank
  int64_t kept_bytes = 0;       ///< at most, of results that wait for backward on a rank
  int64_t memory_limit = 0;     ///< that the user gave, in bytes; 0: none
  std::string rates;            ///< what the rates were measured on
  PlanMemory memory;
};

/// A layer of a pipeline: the stage that LiBai's rule gives it, and the one that it has.
struct PlanLayer {
  std::string path;  ///< "h.0"
  int automatic_stage = 0;
  int actual_stage = 0;
};

/// How the layers of a model are divided over the stages of a pipeline.
struct PlanPipeline {
  std::string why;                ///< "by LiBai's rule"; empty without a pipeline
  int stages = 1;                 ///< how many
  std::vector<PlanLayer> layers;  ///< in order
  /// Seconds of a step that each stage computes, as the plan expects; empty without an example.
  std::vector<double> seconds;

  /// Of all stages' seconds, from 0 to 1.
  double share(int stage) const;
};

/// Layers, what they save for backward of which is computed again (memory/recompute/).
struct PlanSegment {
  std::string layers;   ///< "h.0 to h.2"
  std::string not_cut;  ///< why it is kept after all; empty where it is not
  bool kept = false;    ///< as the budget of memory allows
};

/// What `initialize` made of a model, and what running it cost so far.
struct Plan {
  std::vector<PlanEntry> entries;
  std::vector<PlanAxis> axes;  ///< those of more than one rank, outermost first
  int ranks = 1;               ///< of the world
  PlanPipeline pipeline;
  PlanForecast forecast;
  std::vector<PlanSegment> recomputed;  ///< empty where nothing is
  /// How what layers save for backward is moved to the host (memory/offload/); empty where the
  /// config does not ask for it.
  std::string offload;
  PlanMemory memory;
  std::vector<GatherEntry> gathers;  ///< operators that had to gather, and why
  std::vector<PlanTraffic> traffic;
  /// The types that the model computes in, where the config says so (docs/mixed-precision.md).
  std::string precision;
  std::string counted;  ///< over what: "since initialize", "in the counted step"

  int64_t local_bytes() const;
  /// Bytes of the parameters that a stage of the pipeline has, all tensor ranks together.
  int64_t stage_bytes(int stage) const;
  /// A table for people, 96 columns wide where names allow: equal layers share a line.
  std::string to_string() const;
  /// The same for programs.
  nlohmann::json to_json() const;
};

}  // namespace oslo
