#pragma once

#include "parallelizers/placement/elsewhere/stage_residence.h"

namespace oslo {

/// A model on a pipeline in a step: what crosses stages the micro-batch of the forward's thread
/// carries (micro_batch.h), so that gradients come back. Elsewhere, in a backward pass, nothing is
/// carried.
class StepResidence final : public StageResidence {
 public:
  /// Of the values that `between` has between steps.
  explicit StepResidence(const StageResidence& between) : StageResidence(between) {}

  void check_carried(c10::function_ref<std::string()> needs) const override;
  bool interleaves() const override { return ranks().several(); }
};

}  // namespace oslo
