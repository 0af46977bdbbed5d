#pragma once

#include <memory>
#include <vector>

namespace oslo {

/// What is gathered as one.
class Gatherable {
 public:
  virtual ~Gatherable() = default;
  /// Starts to gather it, where that goes on beside computation; the next use waits for it, or
  /// gathers anew where it has been written since.
  virtual void gather_ahead() {}
  virtual void drop_ahead() {}
};

/// Buckets in the order in which one direction gathers them.
class GatherOrder {
 public:
  /// `bucket` is gathered. Returns the one that came behind it the last time; null where that did
  /// not go this way, or ended here.
  std::shared_ptr<Gatherable> next_after(const std::shared_ptr<Gatherable>& bucket);
  /// What came since the last end is the order from here on, if anything did.
  void end();

 private:
  std::vector<std::weak_ptr<Gatherable>> last_, now_;
  bool as_last_ = false;  ///< until now
};

/// Starts to gather the bucket that is expected next when one has been gathered, in forward and
/// backward passes: while that one is computed with, the next one travels. It is one at most, and
/// goes where it is not what comes.
///
/// What is started is told by what all replicas have gathered before, so that all start the same.
class GatherAhead {
 public:
  enum class Direction { forward, backward };

  void about_to_gather(const Gatherable& bucket);
  void has_gathered(const std::shared_ptr<Gatherable>& bucket, Direction direction);
  /// A forward or a backward pass has ended, or a forward begins (one before it may have thrown).
  void end(Direction direction);

 private:
  void drop();

  GatherOrder forward_, backward_;
  std::weak_ptr<Gatherable> expected_;  ///< under way
};

}  // namespace oslo
