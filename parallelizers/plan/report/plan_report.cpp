#include "parallelizers/plan/report/plan_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

namespace oslo {
namespace {

/// LiBai's names for what its saved configuration holds.
void write_pipeline(nlohmann::json& json, const Plan& plan) {
  const PlanPipeline& pipeline = plan.pipeline;
  std::vector<std::string> paths;
  std::vector<int> automatic, actual;
  for (const PlanLayer& layer : pipeline.layers) {
    paths.push_back(layer.path);
    automatic.push_back(layer.automatic_stage);
    actual.push_back(layer.actual_stage);
  }
  json["pipeline_layers"] = paths;
  json["auto_pipeline_stage_id"] = automatic;
  json["actual_pipeline_stage_id"] = actual;
  json["pipeline_stages_by"] = pipeline.why;
  json["pipeline_stages"] = nlohmann::json::array();
  for (int stage = 0; stage < pipeline.stages; ++stage) {
    nlohmann::json line{{"stage", stage}, {"parameter_bytes", plan.stage_bytes(stage)}};
    if (!pipeline.seconds.empty()) {
      line["seconds"] = pipeline.seconds[stage];
      line["share_of_time"] = pipeline.share(stage);
    }
    json["pipeline_stages"].push_back(std::move(line));
  }
}

}  // namespace

double PlanPipeline::share(int stage) const {
  const double all = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return all > 0 ? seconds[stage] / all : 0;
}

int64_t Plan::local_bytes() const {
  int64_t bytes = 0;
  for (const PlanEntry& entry : entries) {
    if (entry.tied_to.empty()) bytes += entry.local_bytes;
  }
  return bytes;
}

int64_t Plan::stage_bytes(int stage) const {
  int64_t bytes = 0;
  for (const PlanEntry& entry : entries) {
    const auto& stages = entry.stages;
    const bool has = std::find(stages.begin(), stages.end(), stage) != stages.end();
    if (has && entry.tied_to.empty()) bytes += entry.global_bytes;
  }
  return bytes;
}

nlohmann::json Plan::to_json() const {
  nlohmann::json json;
  json["parameters"] = nlohmann::json::array();
  for (const PlanEntry& entry : entries) {
    nlohmann::json line = {{"parameter", entry.parameter},
                           {"module", entry.module},
                           {"module_before", entry.module_before},
                           {"module_after", entry.module_after},
                           {"placement", entry.placement},
                           {"why", entry.why},
                           {"global_shape", entry.global_shape},
                           {"local_shape", entry.local_shape},
                           {"local_bytes", entry.local_bytes},
                           {"global_bytes", entry.global_bytes},
                           {"trains", entry.trains},
                           {"stage", entry.stage}};
    if (!entry.stages.empty()) line["stages"] = entry.stages;
    if (!entry.tied_to.empty()) line["tied_to"] = entry.tied_to;
    if (entry.unused_bytes > 0) line["unused_bytes"] = entry.unused_bytes;
    json["parameters"].push_back(std::move(line));
  }
  json["ranks"] = ranks;
  if (!precision.empty()) json["precision"] = precision;
  json["axes"] = nlohmann::json::array();
  for (const PlanAxis& axis : axes) {
    json["axes"].push_back({{"axis", axis.name}, {"groups", axis.groups}});
  }
  if (!pipeline.why.empty()) write_pipeline(json, *this);
  if (forecast.step > 0) {
    json["expected"] = {{"step_seconds", forecast.step},
                        {"collective_seconds", forecast.collectives},
                        {"one_device_seconds", forecast.one_device},
                        {"parameter_bytes", forecast.parameter_bytes},
                        {"kept_bytes", forecast.kept_bytes},
                        {"rates", forecast.rates}};
    if (forecast.memory_limit > 0) json["expected"]["memory_limit"] = forecast.memory_limit;
  }
  if (!recomputed.empty()) {
    json["recomputation"] = nlohmann::json::array();
    for (const PlanSegment& each : recomputed) {
      json["recomputation"].push_back(
          {{"layers", each.layers}, {"not_cut", each.not_cut}, {"kept", each.kept}});
    }
  }
  if (!offload.empty()) json["offload"] = offload;
  if (memory.budget > 0) {
    json["memory"] = {{"budget", memory.budget}, {"peak", memory.peak}, {"at", memory.at}};
    for (const StageMemory& stage : memory.stages) {
      json["memory"]["stages"].push_back({{"parameter_bytes", stage.parameters},
                                          {"gradient_bytes", stage.gradients},
                                          {"optimizer_bytes", stage.states},
                                          {"kept_bytes", stage.kept},
                                          {"kept_least_bytes", stage.kept_least},
                                          {"peak", stage.peak},
                                          {"at", stage.at},
                                          {"least", stage.least},
                                          {"least_at", stage.least_at},
                                          {"fits", stage.within > 0},
                                          {"peak_within", stage.within},
                                          {"segments", stage.segments},
                                          {"computed_again", stage.again}});
      if (!offload.empty()) {
        json["memory"]["stages"].back()["moved_bytes"] = stage.kept - stage.kept_least;
      }
    }
  }
  json["counted"] = counted;
  json["gathers"] = nlohmann::json::array();
  for (const GatherEntry& entry : gathers) {
    json["gathers"].push_back({{"operator", entry.operation},
                               {"reason", entry.reason},
                               {"calls", entry.calls},
                               {"bytes", entry.bytes}});
  }
  json["collectives"] = nlohmann::json::array();
  for (const PlanTraffic& line : traffic) {
    json["collectives"].push_back({{"group", line.group},
                                   {"collective", line.entry.operation},
                                   {"rule", line.entry.rule},
                                   {"calls", line.entry.traffic.calls},
                                   {"elements", line.entry.traffic.elements},
                                   {"bytes", line.entry.traffic.bytes},
                                   {"moved_bytes", line.entry.moved}});
  }
  return json;
}

}  // namespace oslo
