#include "parallelizers/placement/elsewhere/stage_residence.h"

#include "parallelizers/placement/elsewhere/content_provider.h"
#include "parallelizers/placement/elsewhere/stage_call.h"
#include "parallelizers/placement/elsewhere/stage_value.h"
#include "parallelizers/placement/residency/stage_carrier.h"

namespace oslo {

CallPlace StageResidence::begin(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments,
                                const ContextPtr& context) {
  CallPlace place{stages_of(arguments)};
  place.elsewhere = !holds(place.stages);
  // Random numbers that another stage draws are drawn here as well, and dropped: the ranks of one
  // model go on drawing the same, for dropout as on one device, and for the program's own batches.
  // What elements decide the number of, the stage that has them tells (stage_draw.h).
  const bool drawn =
      place.elsewhere && imagined() == nullptr && draws(op, arguments) == Draws::as_shapes_say;
  place.on_zeros =
      place.elsewhere && (drawn || shapes_->on_zeros.count(op.name) > 0 || all_known(arguments));
  if (op.in_place) check_write(op, arguments);
  if (op.in_place && arguments[0].isTensor() && !place.stages.empty()) {
    bring_target(place.stages, arguments[0].toTensor(), context, op.name.c_str());
  }
  if (place.elsewhere || place.stages.empty()) return place;
  if (StageCarrier* const carrier = StageCarrier::current()) carrier->enter(place.stages);
  return place;
}

/// Beside shapes an ordinary tensor is a shape too.
Value StageResidence::operand(const CallPlace& place, const OperatorEntry& op,
                              c10::ArrayRef<c10::IValue> arguments, const at::Tensor& tensor,
                              Value value) {
  if (value.layout && value.layout->resident()) {
    const bool there = !(value.layout->stages() & place.stages).empty();
    if (!there) {
      value = carried_to(place.stages, tensor, std::move(value), op.name.c_str());
    } else if (!place.elsewhere) {
      value = handed_over_to(place.stages, tensor, std::move(value));
    }
  } else if (!place.stages.empty() && !value.layout && pipeline()) {
    refuse_learnable(tensor, place.stages, op.name.c_str());
  }
  if (place.elsewhere && !(place.on_zeros && all_known(arguments))) {
    value.local = place.on_zeros ? zeros_of(value.local).to(device()) : shape_of(value.local);
  }
  return value;
}

std::vector<c10::IValue> StageResidence::call(const OperatorEntry& op,
                                              std::vector<c10::IValue> arguments) {
  return call_on_shapes(op, std::move(arguments), *shapes_, imagined());
}

std::vector<c10::IValue> StageResidence::read(const OperatorEntry& op,
                                              std::vector<c10::IValue> arguments) {
  return read_elsewhere(imagined(), op, std::move(arguments));
}

void StageResidence::put_on_zeros(const OperatorEntry& op,
                                  c10::function_ref<std::vector<c10::IValue>()> arguments) {
  if (imagined() == nullptr && reads_elements(op)) read(op, arguments());  // throws
  shapes_->on_zeros.insert(op.name);
}

}  // namespace oslo
