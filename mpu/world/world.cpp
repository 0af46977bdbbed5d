#include "mpu/world/world.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <string_view>

#include "mpu/base/digest.h"
#include "mpu/base/environment.h"
#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/launch/job_store.h"
#include "mpu/launch/launch_environment.h"
#include "mpu/transport/backends/broken_pipes.h"
#include "mpu/transport/presence/decision.h"
#include "mpu/transport/presence/note.h"
#include "mpu/transport/presence/presence.h"
#include "mpu/transport/process_group.h"

namespace oslo {

/// A series of decisions.
struct World::Channel {
  /// Null: the world's own. The keys of a decision follow from its turn.
  c10::intrusive_ptr<c10d::Store> store;
  std::atomic<int64_t> decisions{0};
};

struct World::State {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string source = "alone";
  bool plan_only = false;
  bool launched = false;
  Rendezvous rendezvous;
  std::mutex mutex;
  std::map<std::string, int64_t> groups;  ///< made so far, by name and ranks
  /// Made so far, the world's own first. Kept: who fails tells so in all of them.
  std::vector<std::shared_ptr<Channel>> channels{std::make_shared<Channel>()};

  Deciders deciders(const Channel& channel) const {
    c10d::Store& store = channel.store ? *channel.store : *rendezvous.store;
    return {store,
            rank,
            size,
            rendezvous.timeout,
            c10::str("rank ", rank),
            {},
            rendezvous.presence.get()};
  }
  c10::intrusive_ptr<c10d::Store> store_of_channel(size_t index) const {
    return c10::make_intrusive<c10d::PrefixStore>(c10::str("channel/", index), rendezvous.store);
  }
  void join(bool launched, bool several_hosts) {
    if (size == 1) return;
    rendezvous.presence = std::make_shared<Presence>(
        rendezvous.store, rank, size,
        Presence::Options{
            rendezvous.host.empty() ? shared_memory::host_identity() : rendezvous.host,
            several_hosts, launched, rendezvous.timeout});
  }
};

namespace {

c10::intrusive_ptr<c10d::Store> join_store(const LaunchEnvironment& launch,
                                           std::chrono::milliseconds timeout) {
  if (launch.size == 1) return c10::make_intrusive<c10d::HashStore>();
  make_broken_pipes_errors();
  return c10::make_intrusive<c10d::PrefixStore>("oslo" + launch.restart_prefix,
                                                join_job_store(launch, timeout));
}

/// As `oslo plan -n` has it.
constexpr int kMostPlannedRanks = 65536;

/// Texts as one, and taken apart again.
std::string joined_texts(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += c10::str(text.size(), ":", text);
  return all;
}
std::vector<std::string> texts_taken_apart(std::string_view all, int ranks) {
  std::vector<std::string> texts;
  while (!all.empty()) {
    size_t size = 0;
    const auto [stop, error] = std::from_chars(all.data(), all.data() + all.size(), size);
    const size_t begin = stop - all.data() + 1;
    OSLO_CHECK(
        error == std::errc() && begin <= all.size() && *stop == ':' && size <= all.size() - begin,
        "texts of the ranks, ", all.size(), " bytes, ", kForeignNote);
    texts.emplace_back(all.substr(begin, size));
    all.remove_prefix(begin + size);
  }
  OSLO_CHECK(std::ssize(texts) == ranks, "texts of the ranks, ", texts.size(), " of ", ranks, ", ",
             kForeignNote);
  return texts;
}

/// How many ranks `oslo plan` pretends to have here; 0 where it did not start this process.
int planned_ranks() {
  const std::string text = read_variable(Variable::plan_ranks).value_or("");
  if (read_variable(Variable::launcher) != "plan") {
    // Left over in a shell it would end training at once, as if all were well.
    if (!text.empty()) {
      std::cerr << "oslo: OSLO_PLAN_RANKS=" << text
                << " is ignored: it is for the processes that `oslo plan` starts; unset it"
                << std::endl;
    }
    return 0;
  }
  int size = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  OSLO_CHECK_AS(config,
                error == std::errc() && stop == text.data() + text.size() && size >= 1 &&
                    size <= kMostPlannedRanks,
                "OSLO_PLAN_RANKS=", text, " is no number of ranks from 1 to ", kMostPlannedRanks);
  return size;
}

}  // namespace

World World::from_environment() {
  static std::mutex mutex;
  static std::shared_ptr<State> joined;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const int size = joined ? 0 : planned_ranks(); size > 0) {
    joined = fake(0, size).state_;
    joined->source = "oslo plan";
    joined->plan_only = true;
  }
  if (!joined) {
    const LaunchEnvironment launch = LaunchEnvironment::detect();
    auto state = std::make_shared<State>();
    state->rank = launch.rank;
    state->size = launch.size;
    state->local_rank = launch.local_rank;
    state->local_size = launch.local_size;
    state->source = launch.source;
    state->rendezvous.timeout = timeout_from_environment();
    state->launched = launch.size > 1;
    state->rendezvous.store = join_store(launch, state->rendezvous.timeout);
    state->rendezvous.loopback = is_on_one_host(launch);
    state->rendezvous.host = read_variable(Variable::host).value_or("");
    state->join(/*launched=*/true, !is_on_one_host(launch) || !state->rendezvous.host.empty());
    joined = std::move(state);
    if (launch.rank == 0 && read_switch(Variable::verbose).value_or(false)) {
      std::cerr << "oslo: " << World(joined).describe() << "\n";
    }
  }
  return World(joined);
}

World World::alone() {
  return over_store(c10::make_intrusive<c10d::HashStore>(), 0, 1);
}

World World::fake(int rank, int size) {
  OSLO_CHECK(size >= 1 && rank >= 0 && rank < size, "rank ", rank, " is not in a world of ", size);
  auto state = std::make_shared<State>();
  state->rank = rank;
  state->size = size;
  state->source = "a dry run";
  state->rendezvous.store = c10::make_intrusive<c10d::HashStore>();
  state->rendezvous.transport = Transport::fake;
  return World(state);
}

World World::over_store(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                        std::chrono::milliseconds timeout, std::string host) {
  OSLO_CHECK(size >= 1 && rank >= 0 && rank < size, "rank ", rank, " is not in a world of ", size);
  auto state = std::make_shared<State>();
  state->rank = state->local_rank = rank;
  state->size = state->local_size = size;
  state->source = size == 1 ? "alone" : "a shared store";
  // A second world over the same store must not read what the first one left there.
  const int64_t turn = store->add(c10::str("oslo/worlds/", rank), 1);
  state->rendezvous.store =
      c10::make_intrusive<c10d::PrefixStore>(c10::str("oslo/world/", turn), std::move(store));
  state->rendezvous.timeout = check_timeout("the time limit", timeout);
  state->rendezvous.host = std::move(host);
  state->join(/*launched=*/false, /*several_hosts=*/false);
  return World(state);
}

World::World(std::shared_ptr<State> state)
    : state_(std::move(state)), channel_(state_->channels.front()) {}

World World::channel() const {
  state();
  World other = *this;
  if (size() == 1 || state_->rendezvous.transport == Transport::fake) return other;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  other.channel_ = std::make_shared<Channel>();
  other.channel_->store = state_->store_of_channel(state_->channels.size());
  state_->channels.push_back(other.channel_);
  return other;
}

const World::State& World::state() const {
  OSLO_CHECK(state_, "this World is unset; use World::from_environment()");
  return *state_;
}

int World::rank() const {
  return state().rank;
}
int World::size() const {
  return state().size;
}
bool World::launched() const {
  return state().launched;
}
bool World::plan_only() const {
  return state().plan_only;
}
int World::local_rank() const {
  return state().local_rank;
}
int World::local_size() const {
  return state().local_size;
}

std::chrono::milliseconds World::timeout() const {
  return state().rendezvous.timeout;
}

void World::set_timeout(std::chrono::milliseconds timeout) const {
  state();
  state_->rendezvous.timeout = check_timeout("the time limit", timeout);
  // Other stores are shared by ranks of this process.
  if (launched()) state_->rendezvous.store->setTimeout(timeout);
}

std::string World::describe() const {
  if (size() == 1) return "1 rank (" + state().source + ")";
  return c10::str(size(), " ranks from ", state().source, " (rank ", rank(), " here)");
}

void World::barrier() const {
  decide("barrier", "", [](const auto&) { return ""; });
}

std::string World::decide(const std::string& topic, const std::string& text,
                          const Decide& decide) const {
  state();
  if (size() == 1 || state_->rendezvous.transport == Transport::fake) {
    return decide(std::vector<std::string>(size(), text));
  }
  return decide_together(state_->deciders(*channel_), channel_->decisions++, topic, text, decide);
}

std::vector<std::string> World::exchange(const std::string& topic, const std::string& text) const {
  return texts_taken_apart(decide(topic, text, joined_texts), size());
}

void World::report_failure(const std::string& what) const {
  if (size() == 1 || state_->rendezvous.transport == Transport::fake) return;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  for (const std::shared_ptr<Channel>& channel : state_->channels) {
    give_up(state_->deciders(*channel), channel->decisions++, what);
  }
  // Others may have come to one more already.
  Channel next;
  next.store = state_->store_of_channel(state_->channels.size());
  give_up(state_->deciders(next), 0, what);
}

std::string World::first_failure(const std::string& where, const std::string& what) const {
  if (size() == 1 || state_->rendezvous.transport == Transport::fake) return what;
  try {
    const std::vector<uint8_t> first = state_->rendezvous.store->compareSet(
        "failure/" + where, {}, std::vector<uint8_t>(what.begin(), what.end()));
    return {first.begin(), first.end()};
  } catch (const std::exception&) {
    return what;  // the store has gone with its rank
  }
}

std::shared_ptr<Group> World::make_group(const std::string& name, std::vector<int> ranks,
                                         Transport transport) const {
  const auto here = std::find(ranks.begin(), ranks.end(), rank());
  OSLO_CHECK(here != ranks.end(), "group ", name, " of ranks ", ranks, " does not hold rank ",
             rank());
  const int group_rank = static_cast<int>(here - ranks.begin());
  // The ranks keep sibling groups apart, the count keeps two meshes apart.
  std::string members;
  for (const int rank : ranks) members += c10::str(rank == ranks.front() ? "/" : ",", rank);
  // LibTorch's server takes keys of 8 KiB.
  constexpr size_t kLongest = 200;
  if (members.size() > kLongest) {
    members = c10::str("/", ranks.front(), "..", ranks.back(), "/", digest_of(members));
  }
  std::string key = name + members;
  if (state_->rendezvous.presence) state_->rendezvous.presence->start_over();
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    key += c10::str("/", state_->groups[key]++);
  }
  auto process_group = make_process_group(state_->rendezvous, key, group_rank, ranks, transport);
  return std::make_shared<Group>(name, std::move(ranks), group_rank, std::move(process_group));
}

}  // namespace oslo
