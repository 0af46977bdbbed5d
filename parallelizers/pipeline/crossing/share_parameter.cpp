#include "parallelizers/pipeline/crossing/share_parameter.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <limits>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

/// No micro-batch has it.
constexpr int kShareTag = std::numeric_limits<int>::max() - 3;

}  // namespace

void share_parameter(const at::Tensor& parameter, StageSet stages) {
  const Mark* mark = mark_of(parameter);
  if (mark == nullptr || !mark->layout->resident() || mark->layout->stages() == stages) return;
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const Residence& residence = *mark->layout->context()->residence();
  const StageRanks& ranks = residence.ranks();
  const StageSet before = mark->layout->stages();
  const int from = ranks.rank_of(before.first());
  at::Tensor part = unmarked_alias(parameter);
  for (int rank = 0; rank < residence.pipeline()->size(); ++rank) {
    if (!ranks.on_rank(stages, rank) || ranks.on_rank(before, rank)) continue;
    if (ranks.rank() == from) residence.pipeline()->send({part}, rank, kShareTag);
    if (ranks.rank() != rank) continue;
    part = at::empty(parameter.sizes(),
                     at::TensorOptions(parameter.dtype()).device(residence.device()));
    part = residence.pipeline()->receive(from, kShareTag, {part}).front();
  }
  set_stages_of(parameter, stages, part);
}

}  // namespace oslo
