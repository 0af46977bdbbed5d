#include "mpu/launch/store_server.h"

#include <arpa/inet.h>
#include <c10/util/thread_name.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "mpu/base/error.h"

namespace oslo {
namespace {

/// Of this thread, and of those that it starts: a new table with the standard streams. Where the
/// kernel refuses, the process's own stays in use.
void take_own_descriptors() {
  ::syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_UNSHARE);
}

/// A socket bound to the loopback; the server listens on it and closes it.
int bind_to_loopback(int& port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  OSLO_CHECK(descriptor >= 0, "no socket for the ranks' store: ", std::strerror(errno));
  // `oslo run` holds the port for its ranks, bound in the same way.
  const int yes = 1;
  ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  // To listen now shows a port on which somebody else does; the server asks once more.
  if (::bind(descriptor, generic, size) != 0 || ::listen(descriptor, SOMAXCONN) != 0 ||
      ::getsockname(descriptor, generic, &size) != 0) {
    const int reason = errno;
    ::close(descriptor);
    fail("rank 0 cannot host the ranks' store on 127.0.0.1, port ", port, ": ",
         std::strerror(reason), "; set MASTER_PORT to a free port on every rank");
  }
  port = ntohs(address.sin_port);
  return descriptor;
}

/// A server of nobody's, for a moment. libuv makes a pipe for the process when it is first used,
/// and in a child after fork() it closes the descriptors of these numbers: they are to be those of
/// the process's table, not of a thread's own.
void have_libuv_made_its_pipe() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  options.useLibUV = true;
  int port = 0;
  options.masterListenFd = bind_to_loopback(port);
  const c10d::TCPStore server("127.0.0.1", options);
}

}  // namespace

StoreServer::StoreServer(int port, bool loopback) : port_(port) {
  have_libuv_made_its_pipe();
  thread_ = std::thread([this, loopback] { serve(loopback); });
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return listens_ || failure_; });
  if (!failure_) return;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(failure_);
}

StoreServer::~StoreServer() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

/// The server begins and ends on this thread, which waits in between: its descriptors mean nothing
/// elsewhere.
void StoreServer::serve(bool loopback) {
  c10::setThreadName("oslo_host");
  const auto say = [this](std::exception_ptr failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    listens_ = !failure;
    failure_ = std::move(failure);
    changed_.notify_all();
  };
  try {
    take_own_descriptors();
    c10d::TCPStoreOptions options;
    options.isServer = true;
    options.waitWorkers = false;
    options.useLibUV = true;
    if (loopback) options.masterListenFd = bind_to_loopback(port_);
    options.port = static_cast<uint16_t>(port_);
    const c10d::TCPStore server("127.0.0.1", options);
    port_ = server.getPort();
    say(nullptr);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return ending_; });
  } catch (const std::exception&) {
    say(std::current_exception());
  }
}

}  // namespace oslo
