#pragma once

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "parallelizers/memory/budget/segment_budget.h"
#include "parallelizers/memory/recompute/checkpoint.h"
#include "parallelizers/placement/operators/call_observer.h"

namespace oslo::recompute {
struct Segment;
}

namespace oslo {

/// The layers of one segment.
struct SegmentLayers {
  std::string name;                    ///< "h.0", "h.0 to h.2"
  std::vector<at::Tensor> parameters;  ///< marked
};

/// What became of one.
struct SegmentReport {
  std::string name;
  bool used = false;    ///< forward came to it
  std::string not_cut;  ///< why it is kept as it is; empty where it is computed again
  bool kept = false;    ///< as the budget of memory allows
};

/// Finds the segments of a model that nobody wrote for it, while its forward runs: a segment begins
/// with the first operator that meets a parameter of its layers, and ends with the first one that
/// meets one of others, or again the one that it began with, or with a process group's own
/// collective or the next backward pass of the thread. Its operators are recorded; when backward
/// asks for what they saved, those that are needed run again, once a backward pass (checkpoint.h
/// has what is kept, and what is restored).
///
/// Each segment is tried when it ends for the first time: its operators run again at once, and what
/// they save is compared bit for bit. A segment whose operators do not give the same again, because
/// the program fills memory by pointers or has an autograd::Function of its own, or that writes its
/// inputs, is not cut: it keeps what it saved, as without this, and the report says why. Ranks that
/// share layers find the same.
///
/// As a model's `ModelContext::observer`. On any threads.
class LayerSegments final : public CallObserver,
                            public std::enable_shared_from_this<LayerSegments> {
 public:
  /// `budget` decides which of them are kept; null: none are.
  LayerSegments(const std::vector<SegmentLayers>& segments, CheckpointOptions options,
                std::shared_ptr<SegmentBudget> budget = nullptr);

  bool follows_calls() const override { return false; }
  void called(const OperatorEntry&, c10::ArrayRef<c10::IValue>) override {}
  void threw(const OperatorEntry&) override {}
  void about_to_use(const at::Tensor& parameter, c10::ArrayRef<c10::IValue> arguments) override;

  std::vector<SegmentReport> report() const;
  const SegmentBudget* budget() const { return budget_.get(); }

  /// Ends the segment that this thread is in, if any.
  static void end_open();

 private:
  struct Open;
  static std::unique_ptr<Open>& open();
  void begin(int number, const at::Tensor& parameter);
  void end(Open& ending);
  void give_up(recompute::Segment& segment, const Open& ending);
  void watch(recompute::Segment& segment, int number, int64_t let_go) const;

  const CheckpointOptions options_;
  const std::shared_ptr<SegmentBudget> budget_;
  std::unordered_map<const c10::TensorImpl*, int> segment_of_;
  mutable std::mutex mutex_;
  std::vector<SegmentReport> reports_;
  std::vector<bool> tried_;
  std::map<std::pair<int, size_t>, std::vector<bool>> given_up_;  ///< of a segment
};

}  // namespace oslo
