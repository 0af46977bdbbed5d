#pragma once

#include <functional>
#include <optional>
#include <string>

#include "parallelizers/memory/ranks_in_step.h"
#include "parallelizers/memory/recompute/record/met_memory.h"
#include "parallelizers/memory/saved_tensors.h"
#include "parallelizers/placement/operators/fused_run.h"
#include "parallelizers/placement/operators/operator_tap.h"

namespace oslo::recompute {

/// Whether what the operator of this name computes is to be kept. May be empty.
using KeepIf = std::function<bool(const std::string& op, c10::ArrayRef<c10::IValue> arguments)>;

/// Notes a segment's operators while forward runs them, and what they save.
class Recorder final : public OperatorTap {
 public:
  Recorder(std::shared_ptr<Segment> segment, KeepIf keep_if);

  /// What ends the segment, this recorder with it, in front of a process group's own collective,
  /// which would move data again in backward; without it that is an error.
  void end_before_collectives(std::function<void()> end) { end_ = std::move(end); }

  void run(const OperatorEntry& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override;

  /// For a SavedTensorScope around the segment.
  UnpackSavedTensor pack(const at::Tensor& saved);

  /// Notes how what was there before is at the segment's end.
  void note_end();
  /// The segment has ended: decides what is kept, and lets go of the rest.
  void end();

 private:
  void run_with_carrier(OperatorRecord& record, c10::DispatchKeySet keys, torch::jit::Stack& stack);
  void note_call(OperatorRecord& record, std::vector<c10::IValue> arguments);
  void note_arguments(OperatorRecord& record, c10::ArrayRef<c10::IValue> arguments);
  void note_written(OperatorRecord& record, c10::ArrayRef<c10::IValue> arguments);
  void note_random(OperatorRecord& record, c10::ArrayRef<c10::IValue> arguments);
  void note_results(OperatorRecord& record, int number, c10::ArrayRef<c10::IValue> results);
  void note_maker(const at::Tensor& tensor, int number, int place, bool in_place);
  void note_outside(const at::Tensor& tensor, int storage);
  void settle(SavedSlot& slot);

  std::shared_ptr<Segment> segment_;
  KeepIf keep_if_;
  std::function<void()> end_;
  MetMemory memory_;
  std::optional<RanksInStep> ranks_;  ///< by the first operator on what is cut
  /// Which operator made a tensor, and which of its results it was. Tensors that die keep their
  /// address.
  std::unordered_map<const c10::TensorImpl*, std::pair<int, int>> makers_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> made_;
  const std::shared_ptr<FusedRun> fused_ = std::make_shared<FusedRun>();
  bool in_operator_ = false;
  bool makes_memory_ = false;                            ///< the running one does
  std::vector<std::shared_ptr<SavedSlot>> of_operator_;  ///< what the running one has saved
};

}  // namespace oslo::recompute
