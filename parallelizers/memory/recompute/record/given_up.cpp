#include "parallelizers/memory/recompute/record/given_up.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <tuple>

namespace oslo::recompute {
namespace {

constexpr size_t kMostTried = 10;

/// Tries all choices: bit i of a choice is thing i.
std::vector<int> best_of_all(const std::vector<Weighed>& things, double bytes) {
  std::vector<Weighed> sums(size_t(1) << things.size());
  size_t best = sums.size() - 1;
  for (size_t choice = 1; choice < sums.size(); ++choice) {
    const Weighed& last = things[static_cast<size_t>(std::countr_zero(choice))];
    const Weighed& rest = sums[choice & (choice - 1)];
    sums[choice] = {rest.bytes + last.bytes, rest.cost + last.cost};
  }
  for (size_t choice = 1; choice < sums.size(); ++choice) {
    const auto by_cost = [&](size_t i) { return std::tie(sums[i].cost, sums[i].bytes); };
    if (sums[choice].bytes >= bytes && by_cost(choice) < by_cost(best)) best = choice;
  }
  std::vector<int> chosen;
  for (size_t i = 0; i < things.size(); ++i) {
    if ((best >> i & 1) != 0) chosen.push_back(static_cast<int>(i));
  }
  return chosen;
}

/// Takes the cheapest for its bytes until it is enough, and then gives back what was too much.
std::vector<int> cheapest_first(const std::vector<Weighed>& things, double bytes) {
  std::vector<int> order(things.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return things[a].cost * things[b].bytes < things[b].cost * things[a].bytes;
  });
  std::vector<int> chosen;
  double freed = 0;
  for (const int each : order) {
    if (freed >= bytes) break;
    freed += things[each].bytes;
    chosen.push_back(each);
  }
  for (size_t i = chosen.size(); i-- > 0;) {
    if (freed - things[chosen[i]].bytes < bytes) continue;
    freed -= things[chosen[i]].bytes;
    chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return chosen;
}

}  // namespace

std::vector<int> least_to_give_up(const std::vector<Weighed>& things, double bytes) {
  if (bytes <= 0 || things.empty()) return {};
  return things.size() <= kMostTried ? best_of_all(things, bytes) : cheapest_first(things, bytes);
}

}  // namespace oslo::recompute
