#include "mpu/transport/backends/process_group_gloo.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "mpu/transport/backends/broken_pipes.h"

namespace oslo {
namespace {

using Device = ::gloo::transport::Device;

std::shared_ptr<Device> make_device(bool loopback) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (loopback) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// A send that is finished by a thread. Gloo's own breaks the connection when it is dropped, and
/// waiting for it twice never ends.
class KeptSend final : public c10d::Work {
 public:
  KeptSend(int rank, WorkPtr send) : Work(rank, c10d::OpType::SEND), send_(std::move(send)) {}
  void run() {
    try {
      const bool sent = send_->wait();
      finish(sent ? nullptr : std::make_exception_ptr(std::runtime_error("the send was aborted")));
    } catch (const std::exception&) {
      finish(std::current_exception());
    }
  }
  void abort() override { send_->abort(); }

 private:
  WorkPtr send_;
};

/// Gloo whose sends need nobody who waits for them: a thread keeps what they read until it is sent,
/// which is when the other side has asked for it.
class Gloo final : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;

  ~Gloo() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
      // What has been sent still arrives, unless this rank is failing.
      if (std::uncaught_exceptions() > 0) {
        for (const auto& send : kept_) send->abort();
      }
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    auto send = c10::make_intrusive<KeptSend>(getRank(), ProcessGroupGloo::send(tensors, to, tag));
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_.push_back(send);
    if (!thread_.joinable()) thread_ = std::thread([this] { finish_sends(); });
    changed_.notify_one();
    return send;
  }

 private:
  void finish_sends() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ending_ || !kept_.empty(); });
      if (kept_.empty()) return;
      const auto send = kept_.front();
      lock.unlock();
      send->run();
      lock.lock();
      kept_.pop_front();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<KeptSend>> kept_;
  bool ending_ = false;
  std::thread thread_;
};

/// Returns when all ranks are connected. A rank that dropped its group before would close
/// connections that others are still making: they would end with Gloo's "connection closed by
/// peer".
void wait_until_all_are_connected(c10d::Store& store, int size, std::chrono::milliseconds timeout) {
  if (store.add("oslo/connected", 1) == size) store.set("oslo/all_connected", "");
  store.wait({"oslo/all_connected"}, timeout);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(Rendezvous& rendezvous,
                                                    const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size) {
  make_broken_pipes_errors();
  if (!rendezvous.device) rendezvous.device = make_device(rendezvous.loopback);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(std::static_pointer_cast<Device>(rendezvous.device));
  options->timeout = rendezvous.timeout;
  options->threads = 1;  // our collectives are few and ordered; more threads only compete for cores
  auto gloo = c10::make_intrusive<Gloo>(store, rank, size, options);
  wait_until_all_are_connected(*store, size, rendezvous.timeout);
  return gloo;
}

}  // namespace oslo
