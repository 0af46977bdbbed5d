#pragma once

#include <memory>
#include <utility>

#include "parallelizers/pipeline/crossing/evaluation_carrier.h"
#include "parallelizers/placement/elsewhere/stage_residence.h"
#include "parallelizers/placement/residency/gradient_notes.h"

namespace oslo {

/// A model on a pipeline between its steps. A forward that records no gradients runs as it is
/// written: its values are carried. A program may look at gradients there, of which each stage has
/// its own.
class EvaluationResidence final : public StageResidence {
 public:
  EvaluationResidence(StageRanks ranks, std::shared_ptr<Group> pipeline, at::Device device)
      : StageResidence(std::move(ranks), std::move(pipeline), device),
        carrier_(std::make_unique<EvaluationCarrier>(this->pipeline(), this->ranks())) {}

  StageCarrier* carrier() const override { return carrier_.get(); }
  GradientNotes* from_gradients() const override { return notes_.get(); }

 private:
  void check_write(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) const override;

  const std::unique_ptr<EvaluationCarrier> carrier_;
  const std::unique_ptr<GradientNotes> notes_ = std::make_unique<GradientNotes>();
};

}  // namespace oslo
