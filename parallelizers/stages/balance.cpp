#include "parallelizers/stages/balance.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace oslo {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// What units `first` to `last` (exclusive) cost, for all of them.
using Table = std::vector<std::vector<double>>;

Table table_of(int units, const std::vector<UnitCost>& costs) {
  Table table(units, std::vector<double>(units + 1, 0));
  for (int first = 0; first < units; ++first) {
    for (int last = first + 1; last <= units; ++last) {
      table[first][last] = cost_of_units(costs, first, last);
    }
  }
  return table;
}

/// The best cut where a stage makes of `before`, what those before it come to, and of its own cost
/// what they come to together, and less is better.
struct Cuts {
  Table best;                          ///< by stages, by units: what the first of them come to
  std::vector<std::vector<int>> from;  ///< where the last of these stages begins
};

Cuts best_cuts(int units, int stages, const Table& table,
               const std::function<double(double before, double own)>& together) {
  Cuts cuts{Table(stages + 1, std::vector<double>(units + 1, kNever)),
            std::vector<std::vector<int>>(stages + 1, std::vector<int>(units + 1, 0))};
  cuts.best[0][0] = 0;
  for (int stage = 1; stage <= stages; ++stage) {
    for (int last = stage; last <= units; ++last) {
      for (int first = stage - 1; first < last; ++first) {
        if (cuts.best[stage - 1][first] == kNever) continue;
        const double cost = together(cuts.best[stage - 1][first], table[first][last]);
        if (cost >= cuts.best[stage][last]) continue;
        cuts.best[stage][last] = cost;
        cuts.from[stage][last] = first;
      }
    }
  }
  return cuts;
}

}  // namespace

double cost_of_units(const std::vector<UnitCost>& costs, int first, int last) {
  double sum = 0;
  for (const UnitCost& each : costs) {
    for (int unit = first; unit < last; ++unit) {
      if (!each.units.contains(unit)) continue;
      sum += each.cost;
      break;
    }
  }
  return sum;
}

std::vector<int> balanced_stages(int units, int stages, const std::vector<UnitCost>& costs) {
  const Table table = table_of(units, costs);
  const auto dearest = [](double before, double own) { return std::max(before, own); };
  const double most = best_cuts(units, stages, table, dearest).best[stages][units];
  const auto squares = [&](double before, double own) {
    return own > most ? kNever : before + own * own;
  };
  const Cuts cuts = best_cuts(units, stages, table, squares);
  std::vector<int> ids(units);
  for (int stage = stages, last = units; stage > 0; --stage) {
    const int first = cuts.from[stage][last];
    std::fill(ids.begin() + first, ids.begin() + last, stage - 1);
    last = first;
  }
  return ids;
}

}  // namespace oslo
