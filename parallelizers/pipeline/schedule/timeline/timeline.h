#pragma once

#include <vector>

#include "parallelizers/pipeline/schedule/order/schedule.h"

namespace oslo::pipeline {

/// What a rank did when in a step, simulated or measured, in any unit of time. What draws, compares
/// or writes steps reads this.
struct Timeline {
  /// `reduce`: gradients are averaged over data replicas, or added up over copies of a parameter.
  enum class Doing { compute, send, receive, wait, reduce };
  struct Event {
    Doing doing = Doing::compute;
    Action action;  ///< what is computed, what the message or the wait is for, or was last
    double begin = 0;
    double end = 0;
  };
  std::vector<std::vector<Event>> ranks;  ///< by rank, ascending by begin

  double begin() const;  ///< of the first event of any rank; 0 without events
  double end() const;    ///< of the last event of any rank
  double span() const { return end() - begin(); }
};

/// A stretch of time.
struct Stretch {
  double begin = 0;
  double end = 0;
};

/// When an action of `events` computed: without the waits and receives that lie in it. Ascending;
/// at least one, which may be empty.
std::vector<Stretch> computing_of(const Timeline::Event& action,
                                  const std::vector<Timeline::Event>& events);

/// How a rank spent the step. The four add up to the step's span.
struct RankUse {
  double busy = 0;           ///< computing
  double waiting = 0;        ///< for another rank, with nothing under way
  double communicating = 0;  ///< messages or gradients were under way, and nothing was computed
  double idle = 0;  ///< before its first action and behind its last: the pipeline fills, drains

  double span() const { return busy + waiting + communicating + idle; }
  /// 1 - busy / span; 0 for an empty step.
  double bubble() const { return span() > 0 ? 1 - busy / span() : 0; }
};

/// By rank. Events may lie in each other: a wait or a receive inside an action interrupts it, a
/// send runs beside it.
std::vector<RankUse> use_of(const Timeline& timeline);

/// 1 - (busy of all ranks) / (ranks * span): the share of the machine that a step leaves unused.
double bubble_of(const Timeline& timeline);

}  // namespace oslo::pipeline
