#pragma once

#include <chrono>
#include <mutex>
#include <vector>

#include "parallelizers/pipeline/schedule/timeline/timeline.h"

namespace oslo::pipeline {

/// Notes what one rank does in a step, and when. Its methods may be called from several threads at
/// a time; one action is under way at a time. An event costs two readings of the steady clock and a
/// lock.
class Recorder {
 public:
  using Clock = std::chrono::steady_clock;

  /// `rank` along the pipeline axis.
  explicit Recorder(int rank);

  /// Forgets what was noted. Times count from `now`: the same moment for all ranks, as it is behind
  /// a barrier. The steady clocks of one host's processes are one; those of hosts are not.
  void start(Clock::time_point now = Clock::now());

  /// One event, from here to the end of its life; nothing where `recorder` is null. Events may lie
  /// in each other: a receive in the action that it is for.
  class During {
   public:
    /// Computes `action`, which is under way from now on.
    During(Recorder* recorder, const Action& action);
    /// Something else, for the action that is under way, or was last.
    During(Recorder* recorder, Timeline::Doing doing);
    ~During();
    During(const During&) = delete;
    During& operator=(const During&) = delete;

   private:
    Recorder* recorder_;
    Timeline::Doing doing_;
    Action action_;
    Clock::time_point begin_;
  };

  /// An event that is over, such as a send that went on beside others.
  void add(Timeline::Doing doing, const Action& action, Clock::time_point begin,
           Clock::time_point end);

  /// What was noted, in milliseconds; the other ranks' lists are empty.
  Timeline timeline() const;

 private:
  const int rank_;
  mutable std::mutex mutex_;
  Clock::time_point start_ = Clock::now();
  Action under_way_;
  std::vector<Timeline::Event> events_;
};

/// One timeline of what several hold, such as one of each rank.
Timeline joined(const std::vector<Timeline>& timelines);

}  // namespace oslo::pipeline
