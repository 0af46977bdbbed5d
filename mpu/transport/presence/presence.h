#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "mpu/transport/presence/host_identity.h"

namespace oslo {

/// Which ranks of a world are there. An operation that fails knows its own connections at best, and
/// a rank that fails takes others along, so who is named there may be a victim as well. This tells
/// whose failure was the first, for errors:
///
/// - a rank that finds another one ended or stopped, or throws itself, says so in the store before
///   it closes any connection; what is said first counts;
/// - ranks of one host look at each other's processes;
/// - ranks of several hosts call the roll: a thread on each answers.
///
/// One a rank. Of worlds that no launcher made only what ranks say themselves is known: they are
/// threads of one process, which are all there as long as it is.
class Presence {
 public:
  struct Options {
    std::string host;            ///< ranks with the same one see each other's processes
    bool several_hosts = false;  ///< then a thread answers the roll, over a connection of its own
    bool launched = false;       ///< ranks are processes, and rank 0's is the store's
    std::chrono::milliseconds timeout{0};
  };

  /// In a launched world it says in the store where rank `rank` is, and waits until rank 0 has.
  Presence(c10::intrusive_ptr<c10d::Store> store, int rank, int size, Options options);
  ~Presence();
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  /// "rank 3 (process 4711) has ended", or what else was the first failure; empty where nobody
  /// knows of any. `patient`: what failed may be seen a moment before why.
  std::string cause(bool patient);

  /// Whether this rank would see any process end. Of jobs of more than 64 ranks nobody keeps
  /// looking.
  bool looks() const;
  /// "rank 3 (process 4711) has ended", if `rank` is one of this host that has; else empty. Reads
  /// /proc, and the store as long as it is not known where the rank is.
  std::string ended(int rank);

  /// Tells the others that this rank "has thrown an exception", unless something failed before.
  void tell_that_this_rank(const std::string& what) noexcept;

  /// What failed before is over: ranks make a new group.
  void start_over() noexcept;

 private:
  using ProcessId = shared_memory::ProcessId;
  struct Place {
    std::string host;
    ProcessId process;
  };

  class ShortAnswers;

  std::string find(bool patient);
  std::string tell(const std::string& what);
  std::string told() const;
  std::string heard() const;
  std::string call_the_roll();
  void answer_the_roll(c10d::Store& store);
  void read_places();
  std::optional<Place> read_place(int rank) const;
  std::string look() const;
  bool sees_stopped() const;
  std::string look_at(int rank) const;
  void let_others_read() const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
  const Options options_;
  const ProcessId process_;
  std::vector<std::optional<Place>> places_;  ///< by rank, as far as they are known
  std::mutex mutex_;  ///< whoever looks for the cause has it, for as long as the roll takes
  std::string cause_;
  bool told_ = false;
  mutable std::mutex listening_;  ///< of what the thread needs, which answers meanwhile
  std::condition_variable changed_;
  std::string heard_;  ///< what was told, as the thread last heard of it
  bool ending_ = false;
  std::thread answering_;
};

}  // namespace oslo
