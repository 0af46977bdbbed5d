#include "parallelizers/stages/rank_balance.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

namespace oslo {
namespace {

/// What the search looks at, at most.
constexpr int64_t kMostCuts = 200'000;

/// Where each stage ends; the first one begins at unit 0.
using Ends = std::vector<int>;

/// A line for each set of units.
std::vector<UnitCost> merged(const std::vector<UnitCost>& costs) {
  std::vector<UnitCost> lines;
  for (const UnitCost& each : costs) {
    const auto known = std::find_if(lines.begin(), lines.end(),
                                    [&](const UnitCost& line) { return line.units == each.units; });
    if (known == lines.end()) {
      lines.push_back(each);
    } else {
      known->cost += each.cost;
    }
  }
  return lines;
}

StageSet range_of(int first, int last) {
  StageSet units;
  for (int unit = first; unit < last; ++unit) units = units | StageSet::of(unit);
  return units;
}

class RankCuts {
 public:
  RankCuts(int units, const std::vector<int>& rank_of_stage, const std::vector<UnitCost>& costs)
      : units_(units),
        rank_of_stage_(rank_of_stage),
        ranks_(1 + *std::max_element(rank_of_stage.begin(), rank_of_stage.end())),
        costs_(merged(costs)) {
    for (int first = 0; first <= units; ++first) {
      const StageSet before = range_of(0, first);
      double rest = 0;
      for (const UnitCost& each : costs_) {
        if ((each.units & before).empty()) rest += each.cost;
      }
      rest_.push_back(rest);
    }
  }

  Ends best(Ends start) {
    best_ = evened(std::move(start));
    least_ = std::get<0>(key(best_));
    Held held{std::vector<StageSet>(ranks_), std::vector<double>(ranks_, 0)};
    Ends ends;
    search(held, ends);
    return evened(best_);
  }

 private:
  /// What the ranks have of the stages so far, and what that costs.
  struct Held {
    std::vector<StageSet> units;
    std::vector<double> cost;
  };

  int stages() const { return static_cast<int>(rank_of_stage_.size()); }

  double cost_of(StageSet units) const {
    double sum = 0;
    for (const UnitCost& each : costs_) {
      if (!(each.units & units).empty()) sum += each.cost;
    }
    return sum;
  }

  /// The dearest rank, and how uneven the ranks are, and the stages.
  std::tuple<double, double, double> key(const Ends& ends) const {
    std::vector<StageSet> held(ranks_);
    double most = 0, ranks = 0, stages = 0;
    for (size_t stage = 0; stage < ends.size(); ++stage) {
      const StageSet own = range_of(stage == 0 ? 0 : ends[stage - 1], ends[stage]);
      const double cost = cost_of(own);
      stages += cost * cost;
      held[rank_of_stage_[stage]] = held[rank_of_stage_[stage]] | own;
    }
    for (const StageSet own : held) {
      const double cost = cost_of(own);
      most = std::max(most, cost);
      ranks += cost * cost;
    }
    return {most, ranks, stages};
  }

  /// With the end of one stage after the other moved, until that helps no more.
  Ends evened(Ends ends) const {
    auto least = key(ends);
    for (bool better = true; better;) {
      better = false;
      for (int stage = 0; stage + 1 < stages(); ++stage) {
        const int first = stage == 0 ? 1 : ends[stage - 1] + 1;
        for (int end = first; end < ends[stage + 1]; ++end) {
          Ends moved = ends;
          moved[stage] = end;
          const auto found = key(moved);
          if (found >= least) continue;
          least = found;
          ends = std::move(moved);
          better = true;
        }
      }
    }
    return ends;
  }

  /// Tries all ends of the next stage that leave every rank cheaper than the dearest one of the
  /// best cut so far.
  void search(Held& held, Ends& ends) {
    if (++looked_ > kMostCuts) return;
    const auto stage = static_cast<int>(ends.size());
    if (stage == stages()) {
      best_ = ends;
      least_ = *std::max_element(held.cost.begin(), held.cost.end());
      return;
    }
    const int first = ends.empty() ? 0 : ends.back();
    double room = 0;
    for (const double cost : held.cost) room += least_ - cost;
    if (room < rest_[first]) return;
    const int rank = rank_of_stage_[stage], behind = stages() - stage - 1;
    const StageSet units = held.units[rank];
    const double cost = held.cost[rank];
    for (int end = behind == 0 ? units_ : first + 1; end <= units_ - behind; ++end) {
      held.units[rank] = units | range_of(first, end);
      held.cost[rank] = cost_of(held.units[rank]);
      if (held.cost[rank] >= least_) break;
      ends.push_back(end);
      search(held, ends);
      ends.pop_back();
    }
    held.units[rank] = units;
    held.cost[rank] = cost;
  }

  int units_;
  const std::vector<int>& rank_of_stage_;
  int ranks_;
  std::vector<UnitCost> costs_;
  std::vector<double> rest_;  ///< by unit: what those from it on cost that nothing before has
  Ends best_;
  double least_ = 0;  ///< its dearest rank
  int64_t looked_ = 0;
};

}  // namespace

std::vector<int> balanced_ranks(int units, const std::vector<int>& rank_of_stage,
                                const std::vector<UnitCost>& costs) {
  const auto stages = static_cast<int>(rank_of_stage.size());
  std::vector<int> ids = balanced_stages(units, stages, costs);
  std::vector<int> sorted = rank_of_stage;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end()) return ids;
  Ends ends;
  for (int stage = 0; stage < stages; ++stage) {
    ends.push_back(static_cast<int>(std::upper_bound(ids.begin(), ids.end(), stage) - ids.begin()));
  }
  ends = RankCuts(units, rank_of_stage, costs).best(std::move(ends));
  for (int unit = 0, stage = 0; unit < units; ++unit) {
    if (unit == ends[stage]) ++stage;
    ids[unit] = stage;
  }
  return ids;
}

}  // namespace oslo
