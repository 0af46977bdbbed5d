#pragma once

namespace oslo {

/// How far an engine is in a step of several batches (Colossal-AI's "gradient_accumulation"): of
/// `batches` backward passes the last one exchanges gradients, and only behind it `step` steps and
/// `zero_grad` empties. No communication; ranks count alike.
class BatchCycle {
 public:
  /// Who runs backward passes: the program's loop, by engine.backward, or a PipelineSchedule.
  enum class Way { none, loop, schedule };

  explicit BatchCycle(int batches) : size_(batches) {}

  int size() const { return size_; }
  Way way() const { return way_; }
  /// Whether the next backward pass is the last of its step.
  bool is_last() const { return done_ + 1 >= size_; }

  /// A backward pass is to begin. Throws where the step has all its batches already, and where it
  /// has some that were run in the other way.
  void begins(Way way);
  /// It went through; one that threw leaves the step to be given up by `empties`.
  void ended();

  /// Whether engine.step() is to step now. Throws where nothing went backward since the last call.
  bool steps();
  /// Whether engine.zero_grad() is to empty gradients: between steps, and where one is given up.
  bool empties();
  /// The next step begins.
  void restart();

 private:
  int size_;
  int done_ = 0;
  Way way_ = Way::none;
  bool went_ = false;    ///< a pass, since `steps` was last asked
  bool failed_ = false;  ///< a pass began and has not ended
};

}  // namespace oslo
