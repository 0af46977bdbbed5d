#include "parallelizers/pipeline/schedule/timeline/timeline.h"

#include <algorithm>
#include <array>
#include <limits>

namespace oslo::pipeline {
namespace {

using Doing = Timeline::Doing;
constexpr double kForever = std::numeric_limits<double>::infinity();

// Of what a rank does at a time, the first of these is what the time counts as.
constexpr std::array kFirstCounts = {Doing::wait, Doing::receive, Doing::compute, Doing::reduce,
                                     Doing::send};

struct Change {
  double at;
  Doing doing;
  int begins;  // 1, or -1 where it ends
};

RankUse use_of_rank(const std::vector<Timeline::Event>& events, double span) {
  RankUse use;
  double first = kForever;
  double last = -kForever;
  for (const Timeline::Event& event : events) {
    if (event.doing != Doing::compute && event.doing != Doing::reduce) continue;
    first = std::min(first, event.begin);
    last = std::max(last, event.end);
  }
  std::vector<Change> changes;
  for (const Timeline::Event& event : events) {
    const double begin = std::clamp(event.begin, first, last);
    const double end = std::clamp(event.end, first, last);
    changes.push_back({begin, event.doing, 1});
    changes.push_back({end, event.doing, -1});
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Change& a, const Change& b) { return a.at < b.at; });
  std::array<int, kFirstCounts.size()> running{};
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    running[static_cast<size_t>(changes[i].doing)] += changes[i].begins;
    const double passed = changes[i + 1].at - changes[i].at;
    const auto* const doing =
        std::find_if(kFirstCounts.begin(), kFirstCounts.end(),
                     [&](Doing one) { return running[static_cast<size_t>(one)] > 0; });
    if (doing == kFirstCounts.end() || *doing == Doing::wait) {
      use.waiting += passed;
    } else if (*doing == Doing::compute) {
      use.busy += passed;
    } else {
      use.communicating += passed;
    }
  }
  // What is left, but for rounding.
  use.idle = std::max(0.0, span - use.busy - use.waiting - use.communicating);
  return use;
}

}  // namespace

std::vector<Stretch> computing_of(const Timeline::Event& action,
                                  const std::vector<Timeline::Event>& events) {
  std::vector<Stretch> stretches;
  Stretch next{action.begin, action.end};
  for (const Timeline::Event& event : events) {
    if (event.begin >= action.end) break;
    if (event.doing != Doing::wait && event.doing != Doing::receive) continue;
    if (event.end <= next.begin) continue;
    if (event.begin > next.begin) stretches.push_back({next.begin, event.begin});
    next.begin = std::min(event.end, action.end);
  }
  if (next.end > next.begin || stretches.empty()) stretches.push_back(next);
  return stretches;
}

double Timeline::begin() const {
  double first = kForever;
  for (const auto& events : ranks) {
    for (const Event& event : events) first = std::min(first, event.begin);
  }
  return first == kForever ? 0 : first;
}

double Timeline::end() const {
  double last = -kForever;
  for (const auto& events : ranks) {
    for (const Event& event : events) last = std::max(last, event.end);
  }
  return last == -kForever ? 0 : last;
}

std::vector<RankUse> use_of(const Timeline& timeline) {
  std::vector<RankUse> uses;
  const double span = timeline.span();
  for (const auto& events : timeline.ranks) uses.push_back(use_of_rank(events, span));
  return uses;
}

double bubble_of(const Timeline& timeline) {
  RankUse all;
  for (const RankUse& use : use_of(timeline)) {
    all.busy += use.busy;
    all.idle += use.span() - use.busy;
  }
  return all.bubble();
}

}  // namespace oslo::pipeline
