#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mpu/base/time_limit.h"
#include "mpu/group/group.h"
#include "mpu/transport/backends/transport.h"
#include "mpu/transport/presence/decision.h"

namespace c10d {
class Store;
}

namespace oslo {

/// All ranks of a job, and this process's (or thread's) place among them. A cheap handle: copies
/// are the same membership. A default-made World is unset; `initialize` then takes
/// `from_environment()`.
class World {
 public:
  World() = default;

  /// Joins the job that launched this process: `oslo run`, torchrun, Open MPI or Slurm; alone
  /// without any of them. The first call meets the other ranks, later ones return the same world:
  /// a process's membership is the one thing this library remembers for a process.
  static World from_environment();

  /// A world of one.
  static World alone();

  /// Rank `rank` of a pretended world of `size`: collectives move nothing (dry runs).
  static World fake(int rank, int size);

  /// A world over a store that the ranks share (tests: one thread a rank over a HashStore). Ranks
  /// of the same `host` can share memory; empty: this machine's. Several worlds over one store do
  /// not meet, if every rank makes as many.
  static World over_store(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                          std::chrono::milliseconds timeout = kDefaultTimeout,
                          std::string host = "");

  bool defined() const { return state_ != nullptr; }
  int rank() const;
  int size() const;
  int local_rank() const;
  int local_size() const;

  /// How long a rank waits for the others, in an exchange or an operation of a group, before it
  /// throws: OSLO_TIMEOUT's seconds in a world from the environment, else ten minutes.
  std::chrono::milliseconds timeout() const;
  /// Sets it for this world's exchanges and for the groups that are made from now on; the same on
  /// every rank. Throws unless it lies between a millisecond and a week.
  void set_timeout(std::chrono::milliseconds timeout) const;

  /// Which launcher it came from, e.g. "4 ranks from torchrun".
  std::string describe() const;

  /// Whether its ranks are processes of a launcher, not threads or pretended.
  bool launched() const;

  /// Whether `oslo plan` started this process: `initialize` prints the plan and ends it.
  bool plan_only() const;

  /// Returns when every rank has called it. Nothing to wait for at size 1.
  void barrier() const;

  /// Every rank hands in a text, rank 0 alone calls `decide` on all of them, by rank, and every
  /// rank returns what it returned, or throws what it threw: for agreement before any collective
  /// (see mpu/world/agreement.h). Over the store, a few calls a rank. `topic` names the purpose in
  /// the error when a rank does not answer in time. Call it on every rank.
  std::string decide(const std::string& topic, const std::string& text, const Decide& decide) const;

  /// Every rank's `text`, by rank, in the same way.
  std::vector<std::string> exchange(const std::string& topic, const std::string& text) const;

  /// The same ranks, whose decisions are counted apart from all others: a thread may decide here
  /// while another one does elsewhere, which every rank need not do in the same order. Call it as
  /// often, and in the same order, on every rank.
  World channel() const;

  /// Tells the ranks that wait for this one in `decide`, or will, that it has failed: they throw.
  /// In all channels.
  void report_failure(const std::string& what) const;

  /// What the first rank that failed in `where` said; `what`, if this is the first. Waits for
  /// nobody: for errors that name where a job broke.
  std::string first_failure(const std::string& where, const std::string& what) const;

  /// The group `name` of `ranks`, which must hold this rank. Collective over them.
  std::shared_ptr<Group> make_group(const std::string& name, std::vector<int> ranks,
                                    Transport transport = Transport::automatic) const;

 private:
  struct State;
  struct Channel;
  explicit World(std::shared_ptr<State> state);
  const State& state() const;
  std::shared_ptr<State> state_;
  std::shared_ptr<Channel> channel_;
};

/// Runs `body` once per rank of a world of `size` threads of this process, and returns when all
/// have ended. The first exception (in time) is rethrown, its message led by the rank; what other
/// ranks say who waited for the failed one stands back behind it. For tests, small experiments:
/// a placement points to its mesh, so nothing here is shared between ranks but the store.
void run_as_threads(int size, const std::function<void(World)>& body,
                    std::chrono::milliseconds timeout = std::chrono::minutes(2));

}  // namespace oslo
