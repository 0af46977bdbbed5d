// Whom a rank names when the store has gone with rank 0, which may have failed first or have been
// taken along.
#include "mpu/transport/presence/presence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "mpu/base/error.h"
#include "mpu/transport/presence/decision.h"
#include "mpu/transport/presence/note.h"
#include "mpu/transport/presence/watched_store.h"
#include "tests/support/error_of.h"

namespace oslo {
namespace {

using namespace std::chrono_literals;
using shared_memory::ProcessId;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A process that does nothing.
class IdleProcess {
 public:
  IdleProcess() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    number_ = ::fork();
    if (number_ == 0) {
      const ProcessId self = ProcessId::self();
      const ssize_t written = ::write(ends[1], &self, sizeof(self));
      while (written > 0) ::pause();
      ::_exit(1);
    }
    EXPECT_EQ(::read(ends[0], &id_, sizeof(id_)), static_cast<ssize_t>(sizeof(id_)));
    for (const int end : ends) ::close(end);
  }
  ~IdleProcess() {
    ::kill(number_, SIGKILL);
    ::waitpid(number_, nullptr, 0);
  }
  IdleProcess(const IdleProcess&) = delete;
  IdleProcess& operator=(const IdleProcess&) = delete;

  void stop() const {
    ::kill(number_, SIGSTOP);
    ::waitpid(number_, nullptr, WUNTRACED);
  }
  /// Until it is seen to have ended.
  void end() const {
    ::kill(number_, SIGKILL);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(number_), &info, WEXITED | WNOWAIT);
  }
  std::string has_ended(int rank) const {
    return c10::str("rank ", rank, " (process ", number_, ") has ended");
  }
  /// As a rank says in the store where it is.
  std::string place(const std::string& host) const {
    return c10::str(id_.number, " ", id_.start_time, "\n", host);
  }

 private:
  pid_t number_ = 0;
  ProcessId id_;
};

constexpr const char* kGone = "the ranks' store at 10.0.0.1:1, which rank 0 hosts, has gone: reset";

/// A store that may go, or goes when somebody counts there.
class GoingStore final : public c10d::PrefixStore {
 public:
  explicit GoingStore(c10::intrusive_ptr<c10d::Store> store)
      : c10d::PrefixStore("", std::move(store)) {}
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<c10d::PrefixStore>("", getUnderlyingStore());
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    check_there();
    c10d::PrefixStore::set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    check_there();
    return c10d::PrefixStore::get(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    check_there();
    return c10d::PrefixStore::check(keys);
  }
  int64_t add(const std::string& key, int64_t value) override {
    if (goes_at_count) gone = true;
    check_there();
    return c10d::PrefixStore::add(key, value);
  }
  std::atomic<bool> gone = false, goes_at_count = false;

 private:
  void check_there() const {
    if (gone) fail(kGone);
  }
};

/// Rank 1 of three ranks, of which the others are other processes.
struct Scene {
  explicit Scene(const std::string& host_of_rank_zero) {
    store->set("presence/place/0", bytes_of(others[0].place(host_of_rank_zero)));
    store->set("presence/place/2", bytes_of(others[1].place("here")));
    const bool several = host_of_rank_zero != "here";
    presence.emplace(store, 1, 3, Presence::Options{"here", several, /*launched=*/true, 1000ms});
    presence->start_over();  // as when a group is made
  }
  static std::vector<uint8_t> bytes_of(const std::string& text) {
    return {text.begin(), text.end()};
  }
  void say(const std::string& key, const std::string& text) { store->set(key, bytes_of(text)); }
  std::string error_of_decision() {
    const Deciders deciders{*store, 1, 3, 1000ms, "rank 1", {}, &*presence};
    return test::error_of(
        [&] { decide_together(deciders, 0, "save", "text", [](const auto&) { return ""; }); });
  }

  std::array<IdleProcess, 2> others;
  c10::intrusive_ptr<GoingStore> store =
      c10::make_intrusive<GoingStore>(c10::make_intrusive<c10d::HashStore>());
  std::optional<Presence> presence;
};

const auto kNamesTheStopped = AllOf(HasSubstr("rank 2 (process "), HasSubstr("is stopped"),
                                    Not(HasSubstr("which rank 0 hosts")));

TEST(Presence, ARankThatIsStoppedIsNamedAloneWhereTheStoreHasGone) {
  for (const char* host_of_rank_zero : {"here", "there"}) {
    Scene scene(host_of_rank_zero);
    scene.others[1].stop();
    scene.store->gone = true;
    EXPECT_THAT(scene.error_of_decision(),
                AllOf(HasSubstr("rank 1 waited for rank 0 (save)"), kNamesTheStopped))
        << host_of_rank_zero;
    EXPECT_THAT(scene.presence->cause(false), kNamesTheStopped);
  }
}

TEST(Presence, WhereNobodySeesWhyTheStoresHostIsNamed) {
  for (const char* host_of_rank_zero : {"here", "there"}) {
    Scene scene(host_of_rank_zero);
    scene.store->gone = true;
    EXPECT_THAT(scene.error_of_decision(), HasSubstr(kGone)) << host_of_rank_zero;
  }
}

TEST(Presence, ItWaitsForTheStoresHostToBeSeenAsEnded) {
  Scene scene("here");
  scene.others[1].end();
  scene.store->gone = true;
  std::thread dying([&] { scene.others[0].end(); });
  // Too late to be seen, it is named by its store.
  EXPECT_THAT(scene.presence->cause(true),
              AllOf(HasSubstr(scene.others[1].has_ended(2)),
                    AnyOf(HasSubstr(scene.others[0].has_ended(0)), HasSubstr(kGone))));
  dying.join();
}

TEST(Presence, AHostOfTheStoreThatTakesLongToEndIsNamedBesideThoseItTookAlong) {
  Scene scene("here");
  scene.others[1].end();
  scene.store->gone = true;
  EXPECT_EQ(scene.presence->cause(true), scene.others[1].has_ended(2) + ", " + kGone);
}

constexpr const char* kThrown = "rank 2 has thrown an exception";

TEST(Presence, WhatWasReadHoldsWhereTheStoreGoesNext) {
  for (const char* host_of_rank_zero : {"here", "there"}) {
    Scene scene(host_of_rank_zero);
    scene.say("presence/told", kThrown);
    scene.store->goes_at_count = true;
    EXPECT_EQ(scene.presence->cause(true), kThrown) << host_of_rank_zero;
  }
}

TEST(Presence, WhoeverAnswersTheRollHasReadWhatWasTold) {
  Scene scene("there");
  scene.say("presence/told", kThrown);
  scene.say("presence/called", "");
  EXPECT_NO_THROW(scene.store->wait({"presence/readers"}, 60s));
}

TEST(Presence, AnAnswerHoldsWhereTheStoreGoesNext) {
  Scene scene("here");
  Note{Note::Kind::ended, 2, 2, scene.others[1].has_ended(2)}.write(*scene.store,
                                                                    "decision/0/answer");
  scene.store->goes_at_count = true;
  EXPECT_THAT(scene.error_of_decision(), HasSubstr(scene.others[1].has_ended(2)));
}

TEST(Presence, WhoWaitsForAKeyNamesAllThatHaveEnded) {
  Scene scene("here");
  const std::shared_ptr<Presence> presence(std::shared_ptr<void>(), &*scene.presence);
  WatchedStore watched("group", scene.store, presence, {0, 1, 2});
  for (const IdleProcess& other : scene.others) other.end();
  EXPECT_THAT(
      test::error_of([&] { watched.wait({"never"}, 60s); }),
      AllOf(HasSubstr(scene.others[0].has_ended(0)), HasSubstr(scene.others[1].has_ended(2))));
}

}  // namespace
}  // namespace oslo
