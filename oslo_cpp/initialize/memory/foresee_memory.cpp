#include "oslo_cpp/initialize/memory/foresee_memory.h"

#include <limits>
#include <optional>
#include <string>

#include "mpu/base/bytes.h"
#include "mpu/base/environment.h"
#include "mpu/base/error.h"
#include "oslo_cpp/initialize/memory/memory_budget.h"
#include "oslo_cpp/initialize/memory/memory_observer.h"
#include "oslo_cpp/initialize/memory/recompute_layers.h"

namespace oslo {
namespace {

/// What no run on shapes shows: tensors of a few bytes within LibTorch's kernels, and those by
/// which ranks agree on segments. Of models that count in megabytes it is nothing.
constexpr int64_t kUnseen = 2048;

/// Throws where not even everything computed again fits.
PlanMemory within_budget(int64_t bytes, StepProfile foreseen, size_t segments) {
  for (StepPhase& phase : foreseen.phases) phase.most += kUnseen;
  const KeptSegments choice = choose_kept(foreseen, segments, usable(bytes));
  OSLO_CHECK(choice.peak <= usable(bytes),
             "initialize: ", budget_too_small(bytes, choice.peak, choice.at));
  return {bytes, choice.peak, choice.at, {}};
}

/// The bytes that `oslo plan --memory` asks about; 0: it does not.
int64_t asked_about() {
  const std::optional<std::string> text = read_variable(Variable::plan_memory);
  if (!text) return 0;
  const std::optional<int64_t> bytes = parse_bytes(*text);
  OSLO_CHECK_AS(config, bytes, row_of(Variable::plan_memory).name, " is \"", *text,
                "\"; give a number of bytes, such as 2GB or 1.5GiB");
  return *bytes;
}

/// What it prints.
PlanMemory answer(int64_t bytes, const std::vector<StageSurvey>& stages, size_t segments) {
  PlanMemory memory;
  memory.budget = bytes;
  for (const StageSurvey& of : stages) {
    const KeptSegments plain =
        choose_kept(of.profile, segments, std::numeric_limits<int64_t>::max());
    const KeptSegments least = choose_kept(of.profile, segments, 0);
    const KeptSegments within = choose_kept(of.profile, segments, usable(bytes));
    StageMemory& stage = memory.stages.emplace_back();
    stage.parameters = of.base.model;
    stage.gradients = of.base.gradients;
    stage.states = of.base.states;
    stage.kept = stage.kept_least = of.profile.kept;
    std::vector<bool> here(segments);
    for (const SegmentRun& run : of.profile.runs) {
      stage.kept += run.let_go;
      here[run.segment] = here[run.segment] || run.let_go > 0;
    }
    stage.peak = plain.peak;
    stage.at = plain.at;
    stage.least = least.peak;
    stage.least_at = least.at;
    if (within.peak <= usable(bytes)) stage.within = within.peak;
    if (of.moved) {
      // Whatever the budget: what is moved does not depend on it.
      const KeptSegments moved = choose_kept(*of.moved, segments, 0);
      stage.kept_least = of.moved->kept;
      stage.least = moved.peak;
      stage.least_at = moved.at;
      stage.within = moved.peak <= usable(bytes) ? moved.peak : 0;
      if (moved.peak > memory.peak) {
        memory.peak = moved.peak;
        memory.at = moved.at;
      }
      continue;
    }
    for (size_t i = 0; i < segments; ++i) {
      stage.segments += here[i] ? 1 : 0;
      stage.again += here[i] && !within.kept[i] ? 1 : 0;
    }
    if (within.peak > memory.peak) {
      memory.peak = within.peak;
      memory.at = within.at;
    }
  }
  return memory;
}

}  // namespace

PlanMemory foresee_memory(SurveyedModel model, const ConfigValues& values, int64_t memory_limit,
                          bool only_plans) {
  const int64_t asked = only_plans ? asked_about() : 0;
  const int64_t bytes = memory_budget(values, memory_limit);
  const bool in_stages = model.stages > 1;
  if (asked == 0 && (bytes == 0 || in_stages)) return {};
  model.segments = segments_of(model.model, values);
  if (values.activation_offload) model.offload = offload_options(values);
  if (in_stages) model.in_flight = forwards_in_flight(values, model.stages);
  const size_t segments = model.segments.size();
  if (asked > 0) return answer(asked, survey_memory(model), segments);
  if (model.half_forward) model.example = nullptr;
  return within_budget(bytes, survey_memory(model).front().profile, segments);
}

}  // namespace oslo
