#include "parallelizers/placement/engine/gradient_number.h"

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/engine/stage_read.h"
#include "parallelizers/placement/residency/gradient_notes.h"
#include "parallelizers/placement/residency/stage_carrier.h"

namespace oslo {
namespace {

/// Beside the operators that read: whether gradients are finite, of a gradient scaler.
bool tells_of_gradients(const Call& call) {
  return reads(call) || call.op().name.starts_with("aten::_amp_foreach_non_finite_check");
}

}  // namespace

bool computes_from_gradients(const Call& call) {
  if (call.place().stages.empty()) return false;
  const GradientNotes* const noted = call.residence()->from_gradients();
  if (noted == nullptr) return false;
  if (StageCarrier::current() != nullptr) return false;
  bool found = false;
  for_each_tensor(call.arguments(), [&](const at::Tensor& tensor) {
    found |= is_gradient(tensor) || noted->knows(tensor);
  });
  if (!found) return false;
  OSLO_CHECK(
      !tells_of_gradients(call), call.name(), " reads a number of the gradients that pipeline ",
      call.place().stages.to_string(),
      " has, which is not the model's: ranks of other stages read another one. The norm of all "
      "gradients is parallel.clip_grad_norm_(INFINITY), the same on every rank; it is not "
      "finite where one of them is not, and oslo::GradScaler leaves such a step out. To look at "
      "this rank's part, take "
      "oslo::local_tensor(gradient)");
  OSLO_CHECK(
      !call.op().random, call.name(), " draws random numbers for gradients that pipeline ",
      call.place().stages.to_string(),
      " has: ranks of other stages have other gradients, would draw other numbers, and go on "
      "with another generator than this one. Draw for every parameter on every rank, as one "
      "device does: torch::randn_like(parameter) has the gradient's sizes");
  return true;
}

void note_from_gradients(const Call& call) {
  GradientNotes& noted = *call.residence()->from_gradients();
  for (const c10::IValue& result : call.results()) {
    for_each_tensor_in(result, [&](const at::Tensor& tensor) {
      // An optimizer writes parameters from gradients, and forwards compute from parameters. What
      // has a mark and no accumulator is an ordinary tensor that stages have written.
      const Mark* const mark = mark_of(tensor);
      const bool parameter =
          mark != nullptr && mark->accumulator && !mark->made_like && !is_gradient(tensor);
      if (!parameter) noted.note(tensor);
    });
  }
}

void note_same(const at::Tensor& tensor, const at::Tensor& same) {
  const LayoutPtr layout = oslo::layout(tensor);
  if (!layout || !layout->resident() || StageCarrier::current() != nullptr) return;
  GradientNotes* const noted = layout->context()->residence()->from_gradients();
  if (noted != nullptr && (is_gradient(tensor) || noted->knows(tensor))) noted->note(same);
}

}  // namespace oslo
