#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "mpu/gather_report.h"
#include "mpu/ledger.h"

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
  /// Of what is registered under this name where the model computes with another tensor:
  /// `head->weight = wte->weight` leaves it in `parameters()`, where nothing uses it.
  int64_t unused_bytes = 0;
  int stage = 0;
  std::string tied_to;  ///< the first name of the same tensor, if this is not it
};

/// One line of traffic: which group, collective and rule.
struct PlanTraffic {
  std::string group;
  LedgerEntry entry;
};

/// What `initialize` made of a model, and what running it cost so far.
struct Plan {
  std::vector<PlanEntry> entries;
  std::vector<GatherEntry> gathers;  ///< operators that had to gather, and why
  std::vector<PlanTraffic> traffic;
  std::string counted;  ///< over what: "since initialize", "in the counted step"

  int64_t local_bytes() const;
  /// A table for people.
  std::string to_string() const;
  /// The same for programs.
  nlohmann::json to_json() const;
};

}  // namespace oslo
