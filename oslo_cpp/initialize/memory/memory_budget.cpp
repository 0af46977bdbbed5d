#include "oslo_cpp/initialize/memory/memory_budget.h"

#include <limits>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "mpu/base/bytes.h"
#include "mpu/base/environment.h"
#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

LoopState state_of(const std::vector<at::Tensor>& tensors, const MemoryAccount& account) {
  LoopState state;
  const auto add = [&](const at::Tensor& tensor) {
    const at::Tensor memory = mark_of(tensor) == nullptr ? tensor : unmarked_alias(tensor);
    if (!memory.has_storage() ||
        !state.memory.insert(memory.storage().unsafeGetStorageImpl()).second)
      return;
    if (!memory.is_meta() && !account.counts(memory.storage())) {
      state.uncounted += static_cast<int64_t>(memory.storage().nbytes());
    }
  };
  for (const at::Tensor& tensor : tensors) {
    add(tensor);
    if (!tensor.is_leaf()) continue;
    if (!tensor.is_inference()) {
      state.writes += tensor.unsafeGetTensorImpl()->version_counter().current_version();
    }
    const at::Tensor& gradient = tensor.grad();
    if (!gradient.defined()) continue;
    state.gradients = true;
    add(gradient);
  }
  return state;
}

}  // namespace

int64_t memory_budget(const ConfigValues& values, int64_t memory_limit) {
  if (!values.activation_checkpoint) return 0;
  return values.activation_memory.value_or(memory_limit);
}

PlanMemory check_memory_budget(int64_t bytes, const StepProfile& foreseen, size_t segments) {
  const KeptSegments choice = choose_kept(foreseen, segments, usable(bytes));
  OSLO_CHECK(choice.peak <= usable(bytes),
             "initialize: ", budget_too_small(bytes, choice.peak, choice.at));
  return {bytes, choice.peak, choice.at, {}};
}

int64_t asked_about() {
  const std::optional<std::string> text = read_variable(Variable::plan_memory);
  if (!text) return 0;
  const std::optional<int64_t> bytes = parse_bytes(*text);
  OSLO_CHECK_AS(config, bytes, row_of(Variable::plan_memory).name, " is \"", *text,
                "\"; give a number of bytes, such as 2GB or 1.5GiB");
  return *bytes;
}

PlanMemory memory_asked_for(int64_t bytes, const std::vector<StageSurvey>& stages,
                            size_t segments) {
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

std::shared_ptr<SegmentBudget> segment_budget(int64_t bytes,
                                              const std::vector<SegmentLayers>& segments,
                                              const ModelView& model, at::Device device) {
  SegmentBudget::Options options;
  options.bytes = bytes;
  options.device = device;
  options.account = MemoryAccount::of_this_thread(device);
  for (const SegmentLayers& segment : segments) options.names.push_back(segment.name);
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : model.in_use()) tensors.push_back(parameter.tensor);
  for (const BufferView& buffer : model.buffers()) tensors.push_back(buffer.tensor);
  options.model = [tensors = std::move(tensors), account = options.account] {
    return state_of(tensors, *account);
  };
  return std::make_shared<SegmentBudget>(std::move(options));
}

}  // namespace oslo
