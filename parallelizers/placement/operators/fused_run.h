#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <memory>

namespace oslo {

struct FusedSum;

/// Operators that run once, or once again (memory/recompute/). What some of them compute depends on
/// those that ran before (engine/kernel_fusion.h): when they run for the first time their choices
/// are noted, and when they run again they choose the same, whatever has been learned meanwhile.
/// Which of them run again makes no difference either: what one computed for another is found
/// within a run alone.
///
/// Of one thread at a time.
class FusedRun : public std::enable_shared_from_this<FusedRun> {
 public:
  /// Of one operator, in order.
  using Choices = c10::SmallVector<bool, 4>;

  /// While alive one operator of `run` runs on this thread.
  class Scope {
   public:
    /// The first time. `alone`: its product computes nothing for others, since it may be kept while
    /// they run again.
    Scope(FusedRun& run, Choices& notes, bool alone);
    /// Again.
    Scope(FusedRun& run, const Choices& noted);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    FusedRun* const outer_;
  };
  /// That of this thread; null where operators run for the only time.
  static FusedRun* current();

  bool again() const { return noted_ != nullptr; }
  bool alone() const { return alone_; }
  /// `now`, which is noted; of operators that run again what was noted.
  bool choose(bool now);

  /// Of operators that run again: what KernelFusion knows of the product before.
  std::shared_ptr<FusedSum> last;

 private:
  bool alone_ = false;
  Choices* notes_ = nullptr;  ///< one of them
  const Choices* noted_ = nullptr;
  size_t next_ = 0;
};

}  // namespace oslo
