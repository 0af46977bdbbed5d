#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace oslo {

/// With OSLO_VERBOSE=1, lines on standard error of how far a save is, for rank 0: of a merged one
/// while it gathers, then while it writes, a file at a time; else when its own part is written.
///
///   oslo: merging  [############............]  50 %  2.1 GB of 4.1 GB  812.4 MB/s  3 s left
///
/// Each ends in a carriage return, so that a terminal shows the last one, and the one at the end in
/// a new line. At most five a second.
class SaveProgress {
 public:
  /// `what` is done, "merging"; `all`: bytes to gather and bytes to write, together. Nothing is
  /// shown where `shows` is false.
  SaveProgress(const char* what, bool shows, uint64_t all);

  /// So many more bytes are done.
  void add(uint64_t bytes);

 private:
  using Clock = std::chrono::steady_clock;

  const char* what_;
  bool shows_;
  uint64_t all_, done_ = 0;
  Clock::time_point begun_ = Clock::now(), last_ = begun_;
};

}  // namespace oslo
