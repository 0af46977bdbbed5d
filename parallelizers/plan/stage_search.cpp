#include "parallelizers/plan/stage_search.h"

#include <ATen/ATen.h>

#include <map>
#include <utility>

#include "mpu/error.h"
#include "mpu/text.h"
#include "parallelizers/pipeline/crossing.h"
#include "parallelizers/placement/engine/stage_carrier.h"
#include "parallelizers/plan/dry_run.h"

namespace oslo {
namespace {

/// A use on one more stage may move others to it.
constexpr int kMostStageRuns = 100;

/// Takes shapes from stage to stage, and notes what is used where it is not.
class UseCarrier final : public StageCarrier {
 public:
  at::Tensor carry(const at::Tensor& tensor, const Value& value, int to) override {
    at::Tensor& there = carried_[{tensor.unsafeGetTensorImpl(), to}];
    if (!there.defined()) {
      there = place_for(value, to).set_requires_grad(value.local.requires_grad());
      kept_.push_back(tensor);
    }
    return there;
  }
  bool lends(const at::Tensor& parameter, int to) override {
    lent_.emplace_back(parameter, to);
    return true;
  }

  const std::vector<std::pair<at::Tensor, int>>& lent() const { return lent_; }

 private:
  std::map<std::pair<const c10::TensorImpl*, int>, at::Tensor> carried_;
  std::vector<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, int>> lent_;
};

/// With what its module has beside it: a product with a weight and the bias that is added to it in
/// place are on one stage.
void lend(const at::Tensor& tensor, int stage, const ModelView& model, StageMap& stages) {
  stages.add(tensor, StageSet::of(stage));
  for (const ParameterView& parameter : model.parameters()) {
    if (!parameter.in_use().is_same(tensor)) continue;
    for (const ParameterView& other : model.parameters()) {
      if (other.module == parameter.module) stages.add(other.in_use(), StageSet::of(stage));
    }
  }
}

}  // namespace

StageUses add_used_stages(StageMap& stages, std::vector<LayerPlan> layers, const ModelView& model,
                          const PlanAxes& axes, const std::function<void()>& example,
                          const Rates& rates) {
  for (int run = 0; run < kMostStageRuns; ++run) {
    UseCarrier carrier;
    std::vector<UnitCost> work;
    try {
      FirstWrites writes;
      DryRun dry(model, axes, example, writes, rates);
      dry.set_stages(stages);
      const StageCarrier::Scope scope(&carrier);
      dry.run(layers);
      work = dry.stage_work();
    } catch (const std::exception& error) {
      return {first_line(message_of(error)), {}};
    }
    if (carrier.lent().empty()) return {"", std::move(work)};
    for (const auto& [tensor, stage] : carrier.lent()) lend(tensor, stage, model, stages);
  }
  fail("the stages that use the model's parameters did not settle in ", kMostStageRuns,
       " runs of the example");
}

}  // namespace oslo
