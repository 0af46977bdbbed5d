#pragma once

#include <vector>

namespace oslo::recompute {

/// Something that is kept, and could be computed again.
struct Weighed {
  double bytes = 0;
  double cost = 0;  ///< of computing it again
};

/// Which of them to give up so that `bytes` are freed at least, for the least cost; of equal ones
/// those that free less. All where all are not enough. Exactly the least of up to ten things; of
/// more, those that are cheapest for their bytes.
std::vector<int> least_to_give_up(const std::vector<Weighed>& things, double bytes);

}  // namespace oslo::recompute
