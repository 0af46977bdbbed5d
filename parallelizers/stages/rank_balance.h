#pragma once

#include <vector>

#include "parallelizers/stages/balance.h"

namespace oslo {

/// The stage of each unit, for `units` of them, in order, where ranks may have several stages:
/// stage s is on rank `rank_of_stage[s]`. A rank computes its stages in turn and holds them
/// together, so what counts is the dearest *rank*: what all its stages cost, with a cost that two
/// of them have once. With one stage a rank `balanced_stages`.
///
/// Otherwise branch and bound from that cut, then moves of single ends that even out the rest. The
/// dearest rank costs least of all cuts there are where 200,000 of them are enough to look at (some
/// 20 layers on 8 stages), and is the best that was found beyond: less than a second. The same on
/// all ranks.
std::vector<int> balanced_ranks(int units, const std::vector<int>& rank_of_stage,
                                const std::vector<UnitCost>& costs);

}  // namespace oslo
