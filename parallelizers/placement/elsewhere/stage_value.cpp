#include "parallelizers/placement/elsewhere/stage_value.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/graph/adopt.h"
#include "parallelizers/placement/carrier/graph/adopted_view.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/graph/move_value.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/elsewhere/shape_call.h"
#include "parallelizers/placement/elsewhere/stage_call.h"
#include "parallelizers/placement/residency/stage_carrier.h"

namespace oslo {
namespace {

std::string place_of_call(const char* operation, StageSet stages) {
  return c10::str(operation, " on pipeline ", stages.to_string(), " ");
}

[[noreturn]] void refuse_parameter(const at::Tensor& tensor, const Mark& mark, StageSet stages,
                                   const char* operation) {
  const std::string place = place_of_call(operation, stages);
  const StageSet from = mark.layout->stages();
  const std::string fix = c10::str("lives on ", from.to_string(),
                                   "; plan it for both, or for the later one: ", "\"stages\": {\"",
                                   mark.name, "\": [", from.first(), ", ", stages.first(),
                                   "]}, or give initialize example_inputs, which shows it");
  if (mark_of(tensor) != nullptr) fail(place, "uses ", mark.name, ", which ", fix);
  fail(place, "uses a view of shape ", tensor.sizes(), " of ", mark.name, ", a parameter that ",
       fix);
}

/// What the target is on the call's stages: on a rank of theirs a tensor of its own, on all others
/// a shape.
Value moved_to(StageSet stages, const at::Tensor& target, const char* operation) {
  Value value = value_of(target);
  const StageSet from = value.layout->stages();
  const ModelContext& context = *value.layout->context();
  if ((from & stages).empty()) {
    value = carried_to(stages, target, std::move(value), operation);
  } else if (context.holds(stages)) {
    value = handed_over_to(stages, target, std::move(value));
  } else {
    value.local = shape_of(value.local);
  }
  const BelowDoor below;
  value.local = value.local.clone(at::MemoryFormat::Contiguous);
  const ContextPtr own = value.layout->context();
  return on_stages(std::move(value), own, stages);
}

struct ParameterUse {
  at::Tensor parameter;
  StageSet held;
  bool writes;
};

/// Gradients and an optimizer's states have the mark of their parameter as well.
std::optional<ParameterUse> parameter_use(const at::Tensor& tensor, bool writes) {
  auto [parameter, mark] = parameter_of(tensor);
  if (mark == nullptr || !mark->layout->resident()) return std::nullopt;
  if (!accumulates_for(*mark->accumulator, parameter)) return std::nullopt;
  const StageSet held = mark->layout->stages();
  return ParameterUse{std::move(parameter), held, writes};
}

/// A slice of a buffer that a forward fills: the buffer moves, and the slice is one of it there.
bool moves_with_base(StageSet stages, const at::Tensor& target, const char* operation) {
  const at::Tensor base = adopted_base(target);
  PlacedTensorImpl* const impl = placed_impl(target);
  if (!base.defined() || impl == nullptr || !base.is_contiguous() || !may_move(base)) return false;
  value_of(target);  // throws where it shares its elements with what moved before
  if (!impl->value().local.is_view()) return false;
  move_value(base, moved_to(stages, base, operation));
  share_version(target, base);
  GraphPlace::of(*impl).replace_value(
      {view_as_of_now(impl->value().local, base, /*moved=*/true), layout(base)});
  return true;
}

}  // namespace

UseFollower* follower() {
  StageCarrier* const carrier = StageCarrier::current();
  return carrier == nullptr ? nullptr : carrier->follower();
}

Value on_stages(Value value, const ContextPtr& context, StageSet stages) {
  if (stages.empty() || (value.layout && value.layout->stages() == stages)) return value;
  auto layout =
      value.layout ? std::make_shared<Layout>(*value.layout) : std::make_shared<Layout>(context);
  layout->set_stages(stages);
  value.layout = std::move(layout);
  return value;
}

Value carried_to(StageSet stages, const at::Tensor& tensor, Value value, const char* operation) {
  const ContextPtr context = value.layout->context();
  StageCarrier* carrier = StageCarrier::current();
  const auto place = [&] { return place_of_call(operation, stages); };
  const std::string from = value.layout->stages().to_string();
  const Residence& residence = *context->residence();
  if (carrier == nullptr) {
    residence.check_carried([&] { return c10::str(place(), "needs a value of ", from); });
    if (!c10::GradMode::is_enabled()) carrier = residence.carrier();
  }
  // Gradients, and what is made like a parameter, are values of a stage.
  const auto [parameter, mark] = parameter_of(tensor);
  if (mark != nullptr && !mark->made_like && !is_gradient(parameter)) {
    UseFollower* const uses = carrier == nullptr ? nullptr : carrier->follower();
    const bool lent = uses != nullptr && uses->lends(parameter, stages.first());
    if (!lent) refuse_parameter(tensor, *mark, stages, operation);
    return on_stages(std::move(value), context, stages);
  }
  OSLO_CHECK(carrier != nullptr, place(), "needs a value of ", from,
             ", and nobody carries values between stages here; train with oslo::PipelineSchedule, "
             "and evaluate with it or under torch::NoGradGuard");
  value.local = carrier->carry(tensor, value, stages.first());
  return on_stages(std::move(value), context, stages);
}

Value handed_over_to(StageSet stages, const at::Tensor& tensor, Value value) {
  const StageRanks& ranks = value.layout->context()->stage_ranks();
  if (!ranks.several()) return value;
  StageCarrier* const carrier = StageCarrier::current();
  const bool shared = ranks.home_of(value.layout->stages()) != ranks.home_of(stages);
  if (shared && carrier != nullptr && parameter_of(tensor).second == nullptr) {
    at::Tensor there = carrier->hand_over(tensor, value, stages);
    if (there.defined()) value.local = std::move(there);
  }
  return value;
}

void bring_target(StageSet stages, const at::Tensor& target, const ContextPtr& context,
                  const char* operation) {
  const LayoutPtr layout = oslo::layout(target);
  const bool lies_elsewhere = layout && layout->resident() && layout->stages() != stages;
  if (lies_elsewhere && may_move(target)) {
    return move_value(target, moved_to(stages, target, operation));
  }
  if (lies_elsewhere && moves_with_base(stages, target, operation)) return;
  check_written_where_held(stages, target, operation);
  if (context->imagined() == nullptr) adopt_target(target, context, stages, operation);
}

void refuse_learnable(const at::Tensor& tensor, StageSet stages, const char* operation) {
  if (!tensor.requires_grad() || !c10::GradMode::is_enabled()) return;
  fail(place_of_call(operation, stages), "uses an ordinary tensor of shape ", tensor.sizes(),
       " that requires a gradient, and of which each pipeline stage would have the gradient of its "
       "own uses; register it in the model before initialize (register_parameter), or pass "
       "detach()");
}

void run_and_tell(UseFollower& follower, bool in_place, c10::ArrayRef<c10::IValue> arguments,
                  c10::function_ref<void()> run) {
  std::vector<ParameterUse> uses;
  bool target = in_place;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    if (auto use = parameter_use(tensor, std::exchange(target, false)))
      uses.push_back(std::move(*use));
  });
  for (const auto& [parameter, held, writes] : uses) follower.use(parameter, held, writes);
  run();
  for (const auto& [parameter, held, writes] : uses) follower.used(parameter, held, writes);
}

namespace {

/// The highest stage of `held`, `least` at least.
int last_of(StageSet held, int least) {
  int stage = StageSet::kMost - 1;
  while (stage > least && !held.contains(stage)) --stage;
  return stage;
}

}  // namespace

void check_written_where_held(StageSet stages, const at::Tensor& target, const char* operation) {
  UseFollower* const uses = follower();
  if (const auto use = uses != nullptr ? parameter_use(target, true) : std::nullopt) {
    uses->use(use->parameter, use->held, true);
    uses->used(use->parameter, use->held, true);
  }
  const auto [parameter, mark] = parameter_of(target);
  if (mark == nullptr || !mark->layout->resident() || stages.empty()) return;
  const StageSet held = mark->layout->stages();
  if ((held & stages) == held) return;
  if (!accumulates_for(*mark->accumulator, parameter)) return;  // a gradient, or a state of it
  if (uses != nullptr && uses->takes_write(parameter, stages.first())) return;
  // Beside a forward it is an optimizer, which has its states where the parameter was before
  // another stage came to use it.
  const bool in_forward = uses != nullptr;
  OSLO_CHECK(mark->layout->context()->imagined() != nullptr, place_of_call(operation, stages),
             "writes ", mark->name, ", which lives on ", held.to_string(),
             ", where nobody would see it; plan it for the stage that ",
             in_forward ? "writes" : "uses", " it: \"stages\": {\"", mark->name,
             "\": ", in_forward ? stages.first() : last_of(held, stages.first()),
             "}, or give initialize example_inputs, which shows it");
}

}  // namespace oslo
