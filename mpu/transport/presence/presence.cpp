#include "mpu/transport/presence/presence.h"

#include <c10/util/thread_name.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/base/time_limit.h"

namespace oslo {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// How long a process may take to be gone when its connections are closed.
constexpr milliseconds kPatience{1000};
/// How long rank 0, whose end is the store's, waits for the others to have read what it told.
constexpr milliseconds kReading{3000};
/// How often what others do is looked for.
constexpr milliseconds kPause{2};
/// How often a rank looks whether the roll is called.
constexpr milliseconds kListening{500};
/// For the answers of ranks on other hosts, and of the store.
constexpr milliseconds kAnswer{10'000};
/// Of so many ranks each looks up all the others when it makes a group; of more, when one fails.
constexpr int kMostPlaces = 64;
/// Of what is told.
constexpr size_t kLongest = 1000;

constexpr const char *kTold = "presence/told", *kReaders = "presence/readers",
                     *kCallers = "presence/callers", *kCalled = "presence/called";

std::string key_of(const char* what, int rank) {
  return c10::str("presence/", what, "/", rank);
}

/// Where the callers of this sleep nobody wakes them: what they wait for happens elsewhere.
void pause() {
  std::this_thread::sleep_for(kPause);
}

}  // namespace

/// In scope while something has failed: a store that does not answer soon will not answer at all.
/// (Stores that are shared by threads answer.)
class Presence::ShortAnswers {
 public:
  ShortAnswers(c10d::Store& store, const Options& options) {
    if (options.launched) guard_.emplace(store, std::min(options.timeout, kAnswer));
  }

 private:
  std::optional<c10d::StoreTimeoutGuard> guard_;
};

Presence::Presence(c10::intrusive_ptr<c10d::Store> store, int rank, int size, Options options)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      options_(std::move(options)),
      process_(ProcessId::self()),
      places_(size) {
  if (!options_.launched) return;
  store_->set(key_of("place", rank_),
              c10::str(process_.number, " ", process_.start_time, "\n", options_.host));
  if (rank_ != 0) {
    try {
      store_->wait({key_of("place", 0)}, options_.timeout);
    } catch (const std::exception& error) {
      fail_as(ErrorKind::peer, "rank ", rank_, " waited for rank 0, to join the job, for up to ",
              to_text(options_.timeout), " (", first_line(message_of(error)), "); ",
              kTimeLimitHint);
    }
    places_[0] = read_place(0);
  }
  if (!options_.several_hosts) return;
  // Now, while the store is surely there: to connect to one that has gone takes the time limit.
  answering_ = std::thread([this, own = store_->clone()] { answer_the_roll(*own); });
}

Presence::~Presence() {
  {
    const std::lock_guard<std::mutex> lock(listening_);
    ending_ = true;
    changed_.notify_all();
  }
  if (answering_.joinable()) answering_.join();
}

std::string Presence::cause(bool patient) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!cause_.empty()) return cause_;
  try {
    const ShortAnswers guard(*store_, options_);
    // Rank 0 hosts the store: without it there is nobody to ask.
    if (rank_ != 0 && !look_at(0).empty()) cause_ = heard().empty() ? look() : heard();
    if (cause_.empty()) {
      cause_ = find(patient);
      if (!cause_.empty()) let_others_read();
    }
  } catch (const std::exception& error) {
    // Found already, and the store went while this rank said that it had read it.
    if (cause_.empty()) cause_ = heard();
    if (!cause_.empty()) return cause_;
    const bool seen = places_[0] && places_[0]->host == options_.host;
    // A process closes its connections before it is seen to have ended: of rank 0, whose end is the
    // store's, others may have ended earlier than that.
    const auto known = [&] { return !(seen ? look_at(0) : look()).empty(); };
    for (const auto give_up = Clock::now() + kPatience; !known() && Clock::now() < give_up;) {
      pause();
    }
    cause_ = look();
    // Rank 0, on another host or still on its way out, may have been the first: nobody is there to
    // tell whether it was. But nobody is stopped because of that.
    if (cause_.empty() || (look_at(0).empty() && !sees_stopped())) {
      cause_ += (cause_.empty() ? "" : ", ") + first_line(message_of(error));
    }
  }
  return cause_;
}

std::string Presence::find(bool patient) {
  read_places();
  const auto patience = Clock::now() + (patient ? kPatience : milliseconds(0));
  while (true) {
    std::string found = told();
    if (!found.empty()) return found;
    found = look();
    if (!found.empty()) return tell(found);
    if (Clock::now() >= patience) break;
    pause();
  }
  return options_.several_hosts ? call_the_roll() : "";
}

/// What was told first: `what`, if that is it.
std::string Presence::tell(const std::string& what) {
  const auto text = what.substr(0, kLongest);
  const auto first = store_->compareSet(kTold, {}, std::vector<uint8_t>(text.begin(), text.end()));
  told_ = true;
  return first_line(
      {reinterpret_cast<const char*>(first.data()), std::min(first.size(), kLongest)});
}

std::string Presence::told() const {
  if (!store_->check({kTold})) return "";
  const auto text = store_->get(kTold);
  return first_line({reinterpret_cast<const char*>(text.data()), std::min(text.size(), kLongest)});
}

std::string Presence::heard() const {
  const std::lock_guard<std::mutex> lock(listening_);
  return heard_;
}

void Presence::let_others_read() const {
  if (!options_.launched) return;
  store_->add(kReaders, 1);
  if (rank_ != 0) return;
  for (const auto end = Clock::now() + kReading; Clock::now() < end; pause()) {
    if (store_->add(kReaders, 0) >= size_ - 1) return;  // one of them is what was told of
  }
}

bool Presence::looks() const {
  return options_.launched && size_ <= kMostPlaces;
}

std::string Presence::ended(int rank) {
  // Whoever has it asks for the cause already.
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock || !looks() || rank == rank_) return "";
  auto& place = places_[rank];
  if (!place && store_->check({key_of("place", rank)})) place = read_place(rank);
  const bool gone = place && place->host == options_.host && !place->process.alive();
  return gone ? look_at(rank) : "";
}

void Presence::tell_that_this_rank(const std::string& what) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!cause_.empty()) return;
    if (rank_ != 0 && !look_at(0).empty()) return;
    const ShortAnswers guard(*store_, options_);
    cause_ = tell(c10::str("rank ", rank_, " ", what));
  } catch (const std::exception&) {
    // The store has gone; so has everybody who would read it.
  }
}

void Presence::start_over() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    // Who was where is to be known when the store has gone with rank 0.
    if (size_ <= kMostPlaces) read_places();
    if (told_) store_->deleteKey(kTold);
  } catch (const std::exception&) {
    // As above.
  }
  told_ = false;
  cause_.clear();
  const std::lock_guard<std::mutex> hearing(listening_);
  heard_.clear();
}

/// Which ranks do not answer. One rank asks for all, and tells.
std::string Presence::call_the_roll() {
  const auto limit = std::min(options_.timeout, kAnswer);
  const bool asks = store_->add(kCallers, 1) == 1;
  if (asks) store_->set(kCalled, "");
  std::vector<int> silent;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) silent.push_back(rank);
  }
  // Who does not ask waits a little longer for what is told.
  for (const auto end = Clock::now() + limit + (asks ? milliseconds(0) : kPatience);
       Clock::now() < end && !silent.empty(); pause()) {
    std::string found = told();
    if (!found.empty()) return found;
    if (!asks) continue;
    std::erase_if(silent, [&](int rank) { return store_->check({key_of("here", rank)}); });
  }
  if (!asks || silent.empty()) return told();
  std::string found;
  for (const int rank : silent) {
    found += c10::str(found.empty() ? "" : ", ", "rank ", rank, " on another host does not answer");
  }
  return tell(found);
}

/// The thread of a rank that has others on other hosts.
void Presence::answer_the_roll(c10d::Store& store) {
  c10::setThreadName("oslo_roll");
  try {
    while (true) {
      {
        std::unique_lock<std::mutex> lock(listening_);
        if (changed_.wait_for(lock, kListening, [this] { return ending_; })) return;
      }
      if (store.check({kTold})) {
        // In time: rank 0, whose end is the store's, may fail next, and this rank with it.
        const auto text = store.get(kTold);
        const std::lock_guard<std::mutex> lock(listening_);
        heard_ = first_line(
            {reinterpret_cast<const char*>(text.data()), std::min(text.size(), kLongest)});
      }
      if (!store.check({kCalled})) continue;
      store.set(key_of("here", rank_), std::vector<uint8_t>());
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!cause_.empty()) return;
      cause_ = find(/*patient=*/false);
      // Whoever asks for the cause has it then, and ends at once.
      if (!cause_.empty()) let_others_read();
      return;
    }
  } catch (const std::exception&) {
    // The store has gone: nobody calls any more.
  }
}

void Presence::read_places() {
  if (!options_.launched) return;
  for (int rank = 0; rank < size_; ++rank) {
    if (!places_[rank] && store_->check({key_of("place", rank)})) places_[rank] = read_place(rank);
  }
}

std::optional<Presence::Place> Presence::read_place(int rank) const {
  const auto bytes = store_->get(key_of("place", rank));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const char* const end = text.data() + text.size();
  Place place;
  const auto number = std::from_chars(text.data(), end, place.process.number);
  if (number.ec != std::errc() || number.ptr == end || place.process.number <= 0) return {};
  const auto start = std::from_chars(number.ptr + 1, end, place.process.start_time);
  if (start.ec != std::errc() || start.ptr == end) return {};
  place.host = std::string(start.ptr + 1, end);
  return place;
}

/// Which ranks of this host have ended or are stopped.
std::string Presence::look() const {
  std::string found;
  for (int rank = 0; rank < size_; ++rank) {
    const std::string seen = look_at(rank);
    if (!seen.empty()) found += (found.empty() ? "" : ", ") + seen;
  }
  return found;
}

bool Presence::sees_stopped() const {
  return std::ranges::any_of(places_, [&](const std::optional<Place>& place) {
    return place && place->host == options_.host &&
           place->process.state() == ProcessId::State::stopped;
  });
}

std::string Presence::look_at(int rank) const {
  const auto& place = places_[rank];
  if (rank == rank_ || !place || place->host != options_.host || place->process == process_) {
    return "";
  }
  switch (place->process.state()) {
    case ProcessId::State::ended:
      return c10::str("rank ", rank, " (process ", place->process.number, ") has ended");
    case ProcessId::State::stopped:
      return c10::str("rank ", rank, " (process ", place->process.number, ") is stopped");
    case ProcessId::State::running:
      break;
  }
  return "";
}

}  // namespace oslo
