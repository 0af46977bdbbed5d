#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace oslo {

/// LibTorch's store server, on a thread whose table of descriptors is its own (where the kernel
/// gives it one): whoever opens connections to it takes no descriptor from the rest of the process.
class StoreServer {
 public:
  /// Listens on 127.0.0.1 or on every interface. Throws where the port is taken; 0 takes a free
  /// one.
  StoreServer(int port, bool loopback);
  /// Ends the server; its clients' connections close.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const { return port_; }

 private:
  void serve(bool loopback);

  int port_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool listens_ = false;
  bool ending_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace oslo
