#include "parallelizers/pipeline/crossing/evaluation_residence.h"

#include "parallelizers/placement/elsewhere/stage_call.h"

namespace oslo {

void EvaluationResidence::check_write(const OperatorEntry& op,
                                      c10::ArrayRef<c10::IValue> arguments) const {
  refuse_scale_of_stage(op, arguments);
}

}  // namespace oslo
