// Stores whose calls end, what lies in them, and the server that hosts them.
#include "mpu/launch/timed_store.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <future>
#include <random>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "mpu/launch/store_server.h"
#include "mpu/transport/group_members.h"
#include "mpu/transport/presence/note.h"
#include "mpu/world/world.h"
#include "tests/support/error_of.h"

namespace oslo {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using Bytes = std::vector<uint8_t>;

/// None of its calls comes back before the end of the test.
class SilentStore final : public c10d::Store {
 public:
  explicit SilentStore(std::shared_future<void> end) : end_(std::move(end)) {}
  c10::intrusive_ptr<c10d::Store> clone() override { return nullptr; }
  void set(const std::string&, const Bytes&) override { end_.wait(); }
  Bytes compareSet(const std::string&, const Bytes&, const Bytes&) override { return none(); }
  Bytes get(const std::string&) override { return none(); }
  int64_t add(const std::string&, int64_t) override { return none().size(); }
  bool deleteKey(const std::string&) override { return none().empty(); }
  bool check(const std::vector<std::string>&) override { return none().empty(); }
  int64_t getNumKeys() override { return none().size(); }
  void wait(const std::vector<std::string>&) override { end_.wait(); }
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {
    end_.wait();
  }
  void append(const std::string&, const Bytes&) override { end_.wait(); }
  std::vector<Bytes> multiGet(const std::vector<std::string>&) override { return {none()}; }
  void multiSet(const std::vector<std::string>&, const std::vector<Bytes>&) override {
    end_.wait();
  }

 private:
  Bytes none() {
    end_.wait();
    return {};
  }
  std::shared_future<void> end_;
};

/// Every call that waits for the server.
const std::vector<std::pair<const char*, std::function<void(c10d::Store&)>>> kCalls{
    {"set of k", [](auto& store) { store.set("k", Bytes{1}); }},
    {"compareSet of k", [](auto& store) { store.compareSet("k", Bytes{}, Bytes{1}); }},
    {"get of k", [](auto& store) { store.get("k"); }},
    {"add to k", [](auto& store) { store.add("k", 1); }},
    {"deleteKey of k", [](auto& store) { store.deleteKey("k"); }},
    {"check of k", [](auto& store) { store.check({"k"}); }},
    {"getNumKeys", [](auto& store) { store.getNumKeys(); }},
    {"wait for k", [](auto& store) { store.wait({"k"}); }},
    {"wait for k", [](auto& store) { store.wait({"k"}, 20ms); }},
    {"append to k", [](auto& store) { store.append("k", Bytes{1}); }},
    {"multiGet of k", [](auto& store) { store.multiGet({"k"}); }},
    {"multiSet of k", [](auto& store) { store.multiSet({"k"}, {Bytes{1}}); }},
};

TEST(TimedStore, EveryCallIsGivenUpAndNoLaterOneIsMade) {
  std::promise<void> end;
  const auto ended = end.get_future().share();
  for (const auto& [name, call] : kCalls) {
    TimedStore store([&] { return c10::make_intrusive<SilentStore>(ended); }, 20ms, "the store");
    const std::string error = error_of([&] { call(store); });
    EXPECT_THAT(error, AllOf(StartsWith("the store has not answered for"), HasSubstr(name)));
    for (const auto& [_, later] : kCalls) EXPECT_EQ(error_of([&] { later(store); }), error);
  }
  end.set_value();
}

TEST(TimedStore, DecisionsOverAStoreThatDoesNotAnswerEnd) {
  std::promise<void> end;
  const auto ended = end.get_future().share();
  for (int rank = 0; rank < 2; ++rank) {
    const auto store = c10::make_intrusive<TimedStore>(
        [&] { return c10::make_intrusive<SilentStore>(ended); }, 20ms, "the store");
    const Deciders deciders{*store, rank, 2, 20ms, c10::str("rank ", rank)};
    EXPECT_THAT(error_of([&] {
                  decide_together(deciders, 0, "a topic", "", [](const auto&) { return ""; });
                }),
                HasSubstr("has not answered"));
  }
  end.set_value();
}

c10::intrusive_ptr<TimedStore> connected(int port, std::chrono::milliseconds limit = 60s) {
  return c10::make_intrusive<TimedStore>(
      [port] {
        c10d::TCPStoreOptions options;
        options.port = static_cast<uint16_t>(port);
        options.waitWorkers = false;
        return c10::intrusive_ptr<c10d::Store>(
            c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
      },
      limit, "the ranks' store");
}

TEST(TimedStore, AServerThatHasEndedIsSaid) {
  auto server = std::make_unique<StoreServer>(0, /*loopback=*/true);
  const auto store = connected(server->port());
  store->set("k", Bytes{1, 2});
  EXPECT_EQ(store->get("k"), (Bytes{1, 2}));
  const auto other = store->clone();
  EXPECT_EQ(other->add("n", 3), 3);
  server.reset();
  EXPECT_THAT(error_of([&] { store->check({"k"}); }), StartsWith("the ranks' store has gone: "));
  EXPECT_THAT(error_of([&] { store->check({"k"}); }), StartsWith("the ranks' store has gone: "));
}

TEST(TimedStore, WhatNobodyAnswersCannotBeReached) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_THAT(error_of([&] { connected(ntohs(address.sin_port), 100ms); }),
              AllOf(StartsWith("the ranks' store cannot be reached"), HasSubstr("connecting")));
  ::close(listener);
}

// --- what strangers send ---

int dial(int port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    return descriptor;
  }
  ::close(descriptor);
  return -1;
}

/// As LibTorch's clients begin.
std::string validated(const std::string& rest) {
  return std::string("\0\xce\xf7\x85\x3c", 5) + rest;
}

std::string number(uint64_t value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

TEST(StoreServer, NobodyWaitsForStrangers) {
  const StoreServer server(0, /*loopback=*/true);
  const auto store = connected(server.port());
  const std::string set = "\1", key = number(1) + "k";
  std::vector<int> strangers;
  for (const std::string& sent :
       {std::string(1, '\0'), std::string("GET / HTTP/1.1\r\n\r\n"), validated(""),
        validated(set + number(5) + "ab"), validated(set + key + number(uint64_t{6} << 30)),
        validated(set + number(uint64_t{6} << 30)), validated(set + number(~uint64_t{0})),
        validated(set + key + number(~uint64_t{0})), validated("\x0a" + number(~uint64_t{0})),
        validated("\x06" + number(uint64_t{1} << 40)), validated("\xff")}) {
    strangers.push_back(dial(server.port()));
    ASSERT_GE(strangers.back(), 0);
    ASSERT_EQ(::write(strangers.back(), sent.data(), sent.size()), std::ssize(sent));
    EXPECT_EQ(store->add("turn", 1), std::ssize(strangers));
  }
  for (const int stranger : strangers) ::close(stranger);
}

TEST(StoreServer, ConnectionsOfOthersTakeNoDescriptorFromThisProcess) {
  const StoreServer server(0, /*loopback=*/true);
  const auto store = connected(server.port());
  // Where the limit cannot be raised there are fewer.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  constexpr rlim_t kStrangers = 2000, kAllowed = 512;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    const rlimit many{std::min(before.rlim_max, kStrangers + 100), before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &many);
    for (rlim_t i = 0; i < kStrangers; ++i) dial(server.port());
    const ssize_t told = ::write(pipe[1], "x", 1);
    while (told == 1) ::pause();
    ::_exit(1);
  }
  const rlimit few{kAllowed, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  char told = 0;
  EXPECT_EQ(::read(pipe[0], &told, 1), 1);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(store->add("turn", 1), i + 1);
  const int descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_GE(descriptor, 0) << "no descriptor is left here";
  EXPECT_LT(descriptor, 256);
  ::close(descriptor);
  ::kill(stranger, SIGKILL);
  ::waitpid(stranger, nullptr, 0);
  ::setrlimit(RLIMIT_NOFILE, &before);
  for (const int end : pipe) ::close(end);
}

TEST(StoreServer, AForkedProcessKeepsItsDescriptors) {
  const StoreServer server(0, /*loopback=*/true);
  // All numbers that are free, so that whatever the server uses is among them.
  std::vector<int> taken;
  for (int i = 0; i < 64; ++i) taken.push_back(::open("/dev/zero", O_RDONLY));
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int descriptor : taken) {
      char byte = 1;
      if (::read(descriptor, &byte, 1) != 1 || byte != 0) ::_exit(1);
    }
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "a child's descriptor was closed or is another";
  for (const int descriptor : taken) ::close(descriptor);
}

/// The addresses on which somebody listens at `port`, as the kernel writes them.
std::vector<std::string> listening_at(int port) {
  std::vector<std::string> addresses;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line, number, address, peer, state;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream(line) >> number >> address >> peer >> state;
      if (state != "0A" || std::stoi(address.substr(address.find(':') + 1), nullptr, 16) != port) {
        continue;
      }
      addresses.push_back(address.substr(0, address.find(':')));
    }
  }
  return addresses;
}

TEST(StoreServer, ListensOnTheLoopbackAloneWhereAllRanksAreHere) {
  const StoreServer server(0, /*loopback=*/true);
  const uint32_t loopback = htonl(INADDR_LOOPBACK);
  std::array<char, 9> text{};
  std::snprintf(text.data(), text.size(), "%08X", loopback);
  EXPECT_THAT(listening_at(server.port()), testing::ElementsAre(text.data()));
  EXPECT_THAT(error_of([&] { StoreServer again(server.port(), true); }),
              AllOf(HasSubstr("rank 0 cannot host the ranks' store"), HasSubstr("MASTER_PORT")));
}

// --- what lies in a store ---

TEST(Note, TextsThatAreLongerThanAValueTravel) {
  const StoreServer server(0, /*loopback=*/true);
  std::vector<std::thread> ranks;
  const std::string text(2 * Note::kPiece + 17, 'x');
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const World world = World::over_store(connected(server.port()), rank, 2);
      const auto texts = world.exchange("long texts", c10::str(rank, text));
      EXPECT_TRUE(texts == (std::vector<std::string>{"0" + text, "1" + text}));
    });
  }
  for (auto& rank : ranks) rank.join();
  // What is left is that there are worlds, and who is in them.
  EXPECT_LT(connected(server.port())->getNumKeys(), 10);
}

std::string read_note(const std::string& content) {
  c10d::HashStore store;
  store.setTimeout(1ms);
  store.set("note", Bytes(content.begin(), content.end()));
  try {
    Note::read(store, "note", 4);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Note, WhatOthersWroteIsRefusedByName) {
  EXPECT_EQ(read_note("t3 2 1\nabc"), "");
  for (const char* content :
       {"", "t", "t3", "t3 ", "t3 2", "t3 2 ", "t3 2 1", "x3 2 1\nabc", "t4 2 1\nabc",
        "t-1 2 1\nabc", "t3 4 1\nabc", "t3 -2 1\nabc", "t3 2 99999999999999999999\nabc",
        "t3 2 2\nabc", "t3 2 -1\nabc", "t3.5 2 1\nabc", "\xff\xfe\x00", "t 3 2 1\nabc"}) {
    EXPECT_THAT(read_note(content), HasSubstr("are not what this library wrote there")) << content;
  }
  std::mt19937 random(5);
  for (int i = 0; i < 3000; ++i) {
    std::string content = "t3 2 1\nabc";
    for (int change = 0; change < 3; ++change) {
      content[random() % content.size()] = static_cast<char>(random());
    }
    read_note(content);  // whatever it says, it throws no more than that
  }
}

TEST(Note, ARankIsToldOfAnAnswerThatOthersWrote) {
  c10d::HashStore store;
  store.set("decision/0/answer", Bytes{'n', 'o', 'n', 's', 'e', 'n', 's', 'e'});
  const Deciders deciders{store, 1, 2, 100ms, "rank 1"};
  EXPECT_THAT(error_of([&] {
                decide_together(deciders, 0, "a topic", "", [](const auto&) { return ""; });
              }),
              AllOf(HasSubstr("a topic"), HasSubstr("somebody else writes to its port")));
}

TEST(Note, MembersOfAGroupThatOthersWroteAreRefused) {
  EXPECT_EQ(MembersMet::from_text("0 0 1 0", 3).host_of, (std::vector<int>{0, 1, 0}));
  for (const char* text : {"", "0", "x", "0 0 1", "0 0 1 0 0", "0 0 2 1", "0 1 0 0", "0 -1 0 0",
                           "9 0 1 0", "-1 0 1 0", "0 0 1 0x", "0 0 1 99999999999999999999"}) {
    EXPECT_THAT(error_of([&] { MembersMet::from_text(text, 3); }),
                HasSubstr("are not what this library wrote there"))
        << text;
  }
  for (const char* text : {"", "auto", "auto\n", "\n\n", "tcp\na\nb"}) {
    EXPECT_NE(error_of([&] { GroupMember::from_text(text); }), "") << text;
  }
}

}  // namespace
}  // namespace oslo
