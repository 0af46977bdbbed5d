// Whoever connects to a port of a job, and whatever is sent there, changes nothing.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/faults_process_test/running_job.h"

namespace oslo::test {
namespace {

/// The ports on which these processes listen.
std::set<int> listening(const std::vector<pid_t>& processes) {
  std::set<std::string> sockets;
  for (const pid_t process : processes) {
    // The store's descriptors are a table of their own, of its threads.
    std::error_code gone;
    for (const auto& thread : fs::directory_iterator(c10::str("/proc/", process, "/task"), gone)) {
      for (const auto& entry : fs::directory_iterator(thread.path() / "fd", gone)) {
        const std::string target = fs::read_symlink(entry.path(), gone).string();
        if (target.rfind("socket:[", 0) == 0) sockets.insert(target.substr(8, target.size() - 9));
      }
    }
  }
  std::set<int> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::vector<std::string> field(10);
      for (std::string& each : field) fields >> each;
      if (field[3] != "0A" || sockets.count(field[9]) == 0) continue;
      ports.insert(std::stoi(field[1].substr(field[1].find(':') + 1), nullptr, 16));
    }
  }
  return ports;
}

/// What they send, each over a connection of its own, which then stays open.
const std::array<std::string, 8> kStrangers{
    "",
    std::string(1, '\0'),
    "GET / HTTP/1.1\r\n\r\n",
    std::string("\0\xce\xf7\x85\x3c\1\5\0\0\0\0\0\0\0ab", 16),                   // half a SET
    std::string("\0\xce\xf7\x85\x3c\1\0\0\0\x80\1\0\0\0", 14),                   // a key of 6 GB
    std::string("\0\xce\xf7\x85\x3c\1\1\0\0\0\0\0\0\0a\0\0\0\x80\1\0\0\0", 23),  // a value
    std::string("\0\xce\xf7\x85\x3c\xff\xff\xff\xff\xff\xff\xff\xff\xff", 14),
    std::string(4096, '\xff')};

/// Strangers at every port of a job, until it ends or each port has met some hundred; some
/// connections say nothing at all.
TEST(Faults, StrangersAtEveryPortOfAJobChangeNothing) {
  for (const char* transport : {"gloo", "auto"}) {
    SCOPED_TRACE(transport);
    RunningJob job({"tensor x data", transport, "throw", 2, 100, 0});
    std::map<int, int> met;  // how often each port was
    std::vector<int> connections;
    constexpr size_t kMost = 2000;
    constexpr int kOfAPort = 40;  // the store's is there long before Gloo's
    while (!job.victim_has_ended()) {
      for (const int port : listening(job.ranks())) {
        if (++met[port] > kOfAPort) continue;
        for (const std::string& text : kStrangers) {
          const int stranger = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
          sockaddr_in address{};
          address.sin_family = AF_INET;
          address.sin_port = htons(static_cast<uint16_t>(port));
          address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
          if (::connect(stranger, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
              ::send(stranger, text.data(), text.size(), MSG_NOSIGNAL) < 0 ||
              connections.size() >= kMost) {
            ::close(stranger);
          } else {
            connections.push_back(stranger);
          }
        }
      }
    }
    job.check();
    // The store, and Gloo's device on each rank.
    EXPECT_GE(met.size(), transport == std::string("gloo") ? size_t{1 + kRanks} : size_t{1});
    for (const int connection : connections) ::close(connection);
  }
}

}  // namespace
}  // namespace oslo::test
