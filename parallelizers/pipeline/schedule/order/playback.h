#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallelizers/pipeline/schedule/order/graph.h"
#include "parallelizers/pipeline/schedule/order/schedule.h"

namespace oslo::pipeline {

/// What an action costs, in any unit of time. A whole backward costs input + weight.
struct Costs {
  std::vector<double> forward, input, weight;  ///< by stage
  double hop = 0;  ///< from the end of an action until another rank has what it computed

  /// 1 for every pass of every stage, no hops.
  static Costs unit(int stages);
};

/// One action as it ran.
struct Run {
  Action action;
  double begin = 0;
  double computed = 0;  ///< what others wait for is on its way
  double end = 0;       ///< the rank goes on; later than `computed` where it read a higher stage
  double arriving = 0;  ///< how long, just before `begin`, what came last was under way
  double read_arriving = 0;  ///< the same just before `end`
};

/// A rank that cannot go on.
struct Stand {
  enum class For { value, gradient, read };
  int rank = 0;
  Action action;  ///< where it stands
  Action needed;  ///< of a rank that stands, too, in that action or before it
  For what = For::value;
};

/// A step in which every rank follows its list. Actions begin as soon as the rank is free and what
/// they need is there; sends never wait.
struct Playback {
  std::vector<std::vector<Run>> runs;  ///< by rank; up to where it stands, if it does
  /// Empty if all lists ran to their ends; otherwise ranks that wait for each other: each needs
  /// something of the next, the last of the first.
  std::vector<Stand> circle;
};

/// `schedule` is one that `check_lists` accepts, `graph` and `costs` have as many stages.
Playback play(const Schedule& schedule, const Graph& graph, const Costs& costs);

/// "rank 3 stands in 3F3, whose forward reads a value of 6F3; rank 2 comes to 6F3 after 6B0, ..."
std::string circle_text(const std::vector<Stand>& circle);

}  // namespace oslo::pipeline
