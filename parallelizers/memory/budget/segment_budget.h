#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "parallelizers/memory/budget/memory_account.h"
#include "parallelizers/memory/budget/step_profile.h"
#include "parallelizers/memory/ranks_in_step.h"

namespace oslo {

/// What tells how far a program's training loop is, and what an account does not see.
struct LoopState {
  int64_t uncounted = 0;  ///< bytes of parameters, buffers and gradients that it does not count
  uint64_t writes = 0;    ///< a number that changes when parameters that train are written
  /// The same by any means (LibTorch's SGD writes by `data()`, which counts none), of this rank's
  /// parts, so that ranks may find others; 0: not known.
  uint64_t contents = 0;
  bool gradients = false;                              ///< some parameter has one
  std::unordered_set<const c10::StorageImpl*> memory;  ///< of parameters, buffers and gradients
};

/// What of a budget may be planned with: 127/128 of it. The rest is for what nobody counts, such as
/// the program's inputs.
int64_t usable(int64_t budget);

/// "the budget of 10 bytes ... cannot be kept: ..", with the least budget that could.
std::string budget_too_small(int64_t budget, int64_t least, const std::string& at);

/// Decides which of a model's segments are kept, such that a rank stays within a budget of bytes
/// that LibTorch's allocator has handed out: weights, gradients, an optimizer's states,
/// activations.
///
/// In the first step everything runs again, which takes least, and what is held is measured phase
/// by phase. Where that fits, the next forward keeps as much as fits, too (choose_kept); where it
/// does not, it throws with the least that is possible. A step later the decision is compared with
/// what was measured, and made again with what it was wrong by. Ranks that share layers decide
/// alike: one all-reduce of the figures at each of these times, none afterwards, and nothing is
/// measured any more. A step ends where parameters have been written since its last backward pass
/// (on several ranks and on GPUs, where writes by `data()` are not seen, or gradients cleared);
/// micro-batches before are parts of it.
///
/// On any threads.
class SegmentBudget : public std::enable_shared_from_this<SegmentBudget> {
 public:
  struct Options {
    int64_t bytes = 0;
    std::vector<std::string> names;  ///< of segments
    std::function<LoopState()> model;
    at::Device device = at::kCPU;
    std::shared_ptr<MemoryAccount> account;
  };
  explicit SegmentBudget(Options options);

  /// A segment's forward begins, with those who share its layers. Whether it keeps what it saves,
  /// as the program wrote it.
  bool begin(int segment, const RanksInStep& ranks);

  int64_t bytes() const { return options_.bytes; }
  /// It has ended. Whether it is tried now.
  void ended(int segment, bool tries);
  /// The forward meets what the program has made. It counts, too.
  void met(const c10::Storage& input);
  /// Whether it wants to be told: until it has decided.
  bool follows_inputs() const { return follows_inputs_; }
  int64_t held() const { return options_.account->held(); }
  /// It has ended, has let go of so many bytes, and will run again. Returns the number of the run.
  size_t let_go(int segment, int64_t bytes, double work);
  /// In backward, before the operators of that run run again.
  void about_to_rerun(size_t run);

  /// What was decided last. Its peak is 0 before anything was.
  KeptSegments decided() const;

 private:
  enum class Stage { profiles, checks, done };

  void begin_forward(const RanksInStep& ranks);
  void next_phase(std::string name, bool once = false);
  void backward_ended();
  void decide(const RanksInStep& ranks);
  void check(const RanksInStep& ranks);
  [[noreturn]] void refuse(int64_t least, const std::string& at) const;
  int64_t peak() const;

  const Options options_;
  mutable std::mutex mutex_;
  Stage stage_ = Stage::profiles;
  std::atomic<bool> follows_inputs_ = true;
  StepProfile profile_;
  std::vector<StepPhase> seen_;  ///< of the step that goes on
  KeptSegments decided_;
  LoopState at_begin_;
  std::unordered_map<const c10::StorageImpl*, int64_t> inputs_;  ///< bytes that nobody counts
  int64_t held_at_begin_ = 0;
  int64_t wrong_by_ = 0;  ///< bytes by which decisions were too low
  int last_segment_ = 0;  ///< whose forward began
  bool began_ = false;
  bool in_backward_ = false;
  bool saw_backward_ = false;
};

}  // namespace oslo
