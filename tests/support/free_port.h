#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

namespace oslo::test {

/// Free a moment ago, and not what this process was given before: several jobs start at a time.
/// Without a thread of ours, as ranks may be forked. Not for several threads.
inline int free_port() {
  static std::set<int> taken;
  int port = 0;
  do {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(socket, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      ADD_FAILURE() << "no free port: " << std::strerror(errno);
    }
    ::close(socket);
    port = ntohs(address.sin_port);
  } while (port != 0 && !taken.insert(port).second);
  return port;
}

}  // namespace oslo::test
