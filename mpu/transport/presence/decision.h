#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace oslo {

class Presence;

/// Ranks that decide something over a store, before any collective.
struct Deciders {
  c10d::Store& store;  ///< keys below "decision/" are used
  int rank;
  int size;
  std::chrono::milliseconds timeout;
  std::string name;              ///< how errors name this rank: "rank 1", "group tensor: rank 1"
  std::vector<int> ranks = {};   ///< of the deciders in the world, for errors; empty: the same
  Presence* presence = nullptr;  ///< who knows why a rank does not come; may be null

  int in_world(int decider) const { return ranks.empty() ? decider : ranks[decider]; }
};

/// What rank 0 makes of every rank's text, in the order of the ranks.
using Decide = std::function<std::string(const std::vector<std::string>&)>;

/// Every rank hands in a text; rank 0 alone calls `decide`, and every rank returns what it
/// returned, or throws `Error` with what it threw. Five store calls a rank, whatever their number.
/// `turn` tells apart the decisions of the same ranks, who count them from 0; `topic` names the
/// purpose in errors.
///
/// When a rank does not come within the timeout, or has given up, the others throw, naming it. So
/// nobody waits for much more than two timeouts, whoever is missing. A rank whose process has ended
/// is seen at once by those of its host, who tell the others. (A store whose calls wait
/// without a limit is to be a TimedStore.) The store may live in rank 0's
/// process, so rank 0 returns once the others have read. Nothing is left in the store.
std::string decide_together(const Deciders& deciders, int64_t turn, const std::string& topic,
                            const std::string& text, const Decide& decide);

/// Tells the ranks that wait for this one at `turn`, or will, that it has failed: they throw
/// `what`. Those who wait do not wait for others either.
void give_up(const Deciders& deciders, int64_t turn, const std::string& what);

}  // namespace oslo
