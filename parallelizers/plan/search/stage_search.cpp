#include "parallelizers/plan/search/stage_search.h"

#include <ATen/ATen.h>

#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "parallelizers/pipeline/crossing/crossing.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/residency/stage_carrier.h"
#include "parallelizers/plan/dry/dry_run.h"

namespace oslo {
namespace {

/// A use on one more stage may move others to it.
constexpr int kMostStageRuns = 100;

/// Takes shapes from stage to stage, and notes what is used where it is not.
class UseCarrier final : public StageCarrier, public UseFollower {
 public:
  /// A parameter or buffer, and a stage that does not hold it.
  using Uses = std::vector<std::pair<at::Tensor, int>>;

  explicit UseCarrier(const ModelView& model) : model_(model) {}

  at::Tensor carry(const at::Tensor& tensor, const Value& value, int to) override {
    const uint64_t writes = writes_to(tensor, *value.layout->context());
    at::Tensor& there = carried_[{tensor.unsafeGetTensorImpl(), to, writes}];
    if (!there.defined()) {
      there = place_for(value, to).set_requires_grad(value.local.requires_grad());
      kept_.push_back(tensor);
    }
    return there;
  }
  UseFollower* follower() override { return this; }
  bool lends(const at::Tensor& parameter, int to) override {
    lent_.emplace_back(owner_of(parameter), to);
    return true;
  }
  bool takes_write(const at::Tensor& parameter, int to) override {
    if (parameter.requires_grad()) return false;  // its gradient would stay where it was
    written_.emplace_back(parameter, to);
    return true;
  }

  const Uses& lent() const { return lent_; }
  const Uses& written() const { return written_; }

 private:
  /// What a tensor with a parameter's mark (its detach(), say) is one of.
  at::Tensor owner_of(const at::Tensor& tensor) const {
    const Mark* const mark = mark_of(tensor);
    const auto owns = [&](const at::Tensor& each) {
      const Mark* const own = mark_of(each);
      return own != nullptr && own->accumulator == mark->accumulator;
    };
    for (const NamedTensor& each : model_.in_use()) {
      if (owns(each.tensor)) return each.tensor;
    }
    for (const BufferView& each : model_.buffers()) {
      if (owns(each.tensor)) return each.tensor;
    }
    return tensor;
  }

  const ModelView& model_;
  /// A tensor, a stage, and how often the tensor had been written.
  std::map<std::tuple<const c10::TensorImpl*, int, uint64_t>, at::Tensor> carried_;
  std::vector<at::Tensor> kept_;
  Uses lent_, written_;
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

/// What the forward writes (running statistics, a cache) is on one stage, the last that uses it:
/// copies would not see each other's writes.
void keep_on_last(const at::Tensor& written, int stage, StageMap& stages) {
  const StageSet now = stages.of(written);
  int last = stage;
  for (int each = stage + 1; each < StageSet::kMost; ++each) {
    if (now.contains(each)) last = each;
  }
  stages.set(written, StageSet::of(last));
}

/// Notes in `stages` what a run used where it is not; false where there was nothing.
bool take_uses(const UseCarrier& carrier, std::set<const c10::TensorImpl*>& written,
               const ModelView& model, StageMap& stages) {
  for (const auto& [tensor, stage] : carrier.written()) {
    written.insert(tensor.unsafeGetTensorImpl());
    keep_on_last(tensor, stage, stages);
  }
  for (const auto& [tensor, stage] : carrier.lent()) {
    if (written.count(tensor.unsafeGetTensorImpl()) > 0) {
      keep_on_last(tensor, stage, stages);
    } else {
      lend(tensor, stage, model, stages);
    }
  }
  return !carrier.lent().empty() || !carrier.written().empty();
}

}  // namespace

/// What a forward reads is zeros at first. A loop that a truth begins, an expert that has words,
/// are run on ones, up to where these end it, and then all of it on zeros again.
StageUses add_used_stages(StageMap& stages, std::vector<LayerPlan> layers, const ModelView& model,
                          const PlanAxes& axes, const std::function<void()>& example,
                          const Rates& rates) {
  std::set<const c10::TensorImpl*> written;
  bool ones = false, tried_ones = false;
  for (int run = 0; run < kMostStageRuns; ++run) {
    UseCarrier carrier(model);
    std::vector<UnitCost> work;
    bool reads = false;
    try {
      FirstWrites writes;
      DryRun dry(model, axes, example, writes, rates);
      dry.set_stages(stages);
      if (ones) dry.imagine_ones();
      const StageCarrier::Scope scope(&carrier);
      dry.run(layers);
      work = dry.stage_work();
      reads = !dry.value_readers().empty();
    } catch (const std::exception& error) {
      if (!ones) return {first_line(message_of(error)), {}};
    }
    if (take_uses(carrier, written, model, stages)) continue;
    if (!ones && (tried_ones || !reads)) return {"", std::move(work)};
    ones = !tried_ones;
    tried_ones = true;
  }
  fail("the stages that use the model's parameters did not settle in ", kMostStageRuns,
       " runs of the example");
}

void run_over_stages(DryRun& run, const ModelView& model, std::vector<LayerPlan>& layers) {
  UseCarrier carrier(model);
  const StageCarrier::Scope scope(&carrier);
  run.run(layers);
}

}  // namespace oslo
