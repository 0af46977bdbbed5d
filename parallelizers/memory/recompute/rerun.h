#pragma once

#include <functional>

#include "parallelizers/memory/recompute/record/segment.h"
#include "parallelizers/memory/saved_tensors.h"
#include "parallelizers/placement/operators/fused_run.h"
#include "parallelizers/placement/operators/operator_tap.h"

namespace oslo::recompute {

/// What becomes of a saved tensor that was computed again. Empty: the slot takes it.
using TakeSlot = std::function<void(SavedSlot& slot, const at::Tensor& again)>;

/// Runs a segment's operators again as they come by, each compared with the recorded one, and fills
/// the slots. Operators that are not needed give tensors without content, or with what was kept.
class Rerun final : public OperatorTap {
 public:
  Rerun(Segment& segment, std::vector<bool> needed, TakeSlot take);

  void run(const OperatorEntry& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override;

  /// In place of a function that calls the operators: runs the recorded ones that are needed.
  void replay();

  /// For a SavedTensorScope around it.
  UnpackSavedTensor pack(const at::Tensor& saved);

  /// All have come by: fills the slots of operators that did not run.
  void end();

 private:
  void compare(const OperatorRecord& record, c10::ArrayRef<c10::IValue> arguments) const;
  void skip(const OperatorRecord& record, torch::jit::Stack& stack) const;
  void run_needed(const OperatorRecord& record, torch::jit::Stack& stack);
  at::Tensor result_of_skipped(const MetTensor& result) const;
  void fill(SavedSlot& slot, const at::Tensor& again) const;
  void note_results(const OperatorRecord& record, torch::jit::Stack& stack, size_t first);

  Segment& segment_;
  const std::vector<bool> needed_;
  /// By RecordFunction's observers, of the thread; nothing where there are none.
  const std::optional<bool> observed_;
  const std::shared_ptr<FusedRun> fused_ = std::make_shared<FusedRun>();
  int number_ = 0;                                 ///< of the next operator
  int running_ = kNone;                            ///< what saves tensors
  size_t saved_ = 0;                               ///< of these, so far
  std::unordered_map<int, size_t> saved_between_;  ///< operators, so far
  const TakeSlot take_;
  std::vector<bool> wanted_;          ///< storages that slots of operators that do not run lie in
  std::vector<c10::Storage> memory_;  ///< where these are now
};

}  // namespace oslo::recompute
