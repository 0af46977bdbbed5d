#include "parallelizers/placement/engine/stage_draw.h"

#include "mpu/base/error.h"
#include "parallelizers/placement/elsewhere/stage_call.h"
#include "parallelizers/placement/residency/stage_carrier.h"

namespace oslo {

void refuse_own_generator(const Call& call) {
  if (!call.op().random || call.place().stages.empty()) return;
  if (!call.residence()->interleaves()) return;
  for (const c10::IValue& argument : call.arguments()) {
    OSLO_CHECK(
        !argument.isGenerator(), call.name(), " on pipeline ", call.place().stages.to_string(),
        " draws from a generator of the program's own. Where a rank has several stages, several "
        "micro-batches are under way, and come to it in another order on each rank: leave the "
        "generator out (each micro-batch has a stream of its own then), or take a schedule with "
        "one stage a rank, such as 1f1b");
  }
}

bool draws_for_all(const Call& call) {
  return call.op().random && !call.place().stages.empty() &&
         draws(call.op(), call.arguments()) == Draws::as_elements_say;
}

void draw_for_all(Call& call, c10::function_ref<void()> rule) {
  // What comes from other stages comes before, and in one order on all ranks.
  call.operands();
  rule();
  StageCarrier* carrier = StageCarrier::current();
  // A hook of a backward pass is called where the gradient is, and nowhere else.
  if (carrier == nullptr) carrier = call.residence()->carrier();
  if (carrier == nullptr) return;
  carrier->share_generator(call.place().stages,
                           generator_of(call.arguments(), call.residence()->device()));
}

}  // namespace oslo
