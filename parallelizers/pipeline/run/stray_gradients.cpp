#include "parallelizers/pipeline/run/stray_gradients.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

uint64_t version_of(const at::Tensor& gradient) {
  return gradient.defined() && !gradient.is_inference() ? gradient._version() : 0;
}

}  // namespace

StrayGradients::StrayGradients(Parameters own, const StageRanks& ranks, bool averages)
    : ranks_(ranks), averages_(averages), known_(std::move(own)) {}

void StrayGradients::use(const at::Tensor& parameter) {
  if (!parameter.requires_grad() || !c10::GradMode::is_enabled()) return;
  if (!known_.insert(parameter.unsafeGetTensorImpl()).second) return;
  const Mark* const mark = mark_of(parameter);
  if (!averages_ && ranks_.count_ranks(mark->layout->stages()) < 2) return;
  used_.push_back({parameter, parameter.grad(), version_of(parameter.grad())});
}

bool StrayGradients::Used::changed() const {
  const at::Tensor& now = parameter.grad();
  return now.defined() && (!now.is_same(gradient) || version_of(now) != version);
}

void StrayGradients::check(Group& stages) const {
  if (used_.empty()) return;
  const Mark* found = nullptr;
  for (const Used& each : used_) {
    if (found == nullptr && each.changed()) found = mark_of(each.parameter);
  }
  const RuleScope scope("pipeline schedule");
  const at::Tensor number = at::full({}, found != nullptr ? 1 : 0, at::kLong);
  if (stages.all_reduce(number).item<int64_t>() == 0) return;
  const std::string name = found != nullptr ? found->name : "on another stage";
  fail("a parameter of another model, ", name,
       ", got a gradient in this step, and a PipelineSchedule averages and adds up those of its "
       "own models",
       kNameAllModels);
}

}  // namespace oslo
