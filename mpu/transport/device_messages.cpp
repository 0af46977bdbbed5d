#include "mpu/transport/device_messages.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/base/time_limit.h"

namespace oslo {
namespace {

using WorkPtr = DeviceMessages::WorkPtr;

/// A stream behind what the current one of `device` holds; none on the CPU, which has no streams.
std::optional<c10::Stream> stream_behind_current(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStreamFromGlobalPool(device);
  c10::Event ready(device.type());
  ready.record(guard.getStream(device));
  ready.block(stream);
  return stream;
}

WorkPtr start_send(c10d::Backend& backend, const at::Tensor& tensor, int to) {
  std::vector<at::Tensor> one{tensor};
  return backend.send(one, to, /*tag=*/0);
}

}  // namespace

/// This rank and another one, who meet once. A thread sees to it, and so this outlives the messages
/// where that thread waits in NCCL for a rank which never comes: nothing ends it.
struct DeviceMessages::Pair {
  Pair(const DeviceMessages& of, int peer, c10::Device device)
      : rank(of.rank_),
        peer(peer),
        device(device),
        timeout(of.timeout_),
        make(of.make_),
        peer_in_world(of.ranks_.empty() ? peer : of.ranks_[peer]) {
    const auto name = c10::str("messages/", std::min(rank, peer), "/", std::max(rank, peer));
    // A connection of its own: NCCL waits in the store, and holds up others of the same one.
    store = c10::make_intrusive<c10d::PrefixStore>(name, of.store_->clone());
  }

  const int rank, peer;
  const c10::Device device;
  const std::chrono::milliseconds timeout;
  const Make make;
  const int peer_in_world;
  StorePtr store;  ///< of the two

  std::mutex mutex;  ///< of what follows, and of calls of `send`
  std::condition_variable changed;
  bool met = false, aborted = false;
  std::exception_ptr failure;  ///< why they do not meet
  BackendPtr up, down;         ///< for messages to the higher rank, and to the lower one
  std::vector<c10::intrusive_ptr<LateSend>> waiting;

  c10d::Backend& sends() const { return rank < peer ? *up : *down; }
  c10d::Backend& receives() const { return rank < peer ? *down : *up; }
  bool ended() const { return met || aborted || failure; }

  void meet();
  void await_peer();
  void make_communicators();
  void check_not_aborted() const;
  void wait_until_met(std::unique_lock<std::mutex>& lock);
  void break_off();
};

/// A send that the meeting's thread starts.
class DeviceMessages::LateSend final : public c10d::Work {
 public:
  LateSend(std::shared_ptr<Pair> pair, at::Tensor tensor)
      : Work(pair->rank, c10d::OpType::SEND),
        pair_(std::move(pair)),
        stream_(stream_behind_current(tensor.device())),
        tensor_(std::move(tensor)) {}

  /// Called under the pair's mutex.
  void start() {
    try {
      const c10::OptionalStreamGuard behind(stream_);
      started_ = start_send(pair_->sends(), tensor_, pair_->peer);
    } catch (const std::exception&) {
      failure_ = std::current_exception();
    }
    tensor_.reset();  // the backend keeps it while it needs it
  }

  bool isCompleted() override {
    const std::lock_guard<std::mutex> lock(pair_->mutex);
    return pair_->ended() && (!started_ || started_->isCompleted());
  }

  bool wait(std::chrono::milliseconds timeout) override {
    {
      std::unique_lock<std::mutex> lock(pair_->mutex);
      pair_->wait_until_met(lock);
    }
    if (failure_) std::rethrow_exception(failure_);
    return started_->wait(timeout);
  }

  void synchronize() override { wait(kNoTimeout); }

 private:
  const std::shared_ptr<Pair> pair_;
  const std::optional<c10::Stream> stream_;
  at::Tensor tensor_;
  WorkPtr started_;  ///< these two are set when the two meet
  std::exception_ptr failure_;
};

/// NCCL waits for the other rank without a limit, and nothing ends that. So each says in the store
/// that it is there, and NCCL is asked when both are.
void DeviceMessages::Pair::await_peer() {
  const auto here = [](int which) { return "here/" + std::to_string(which); };
  store->set(here(rank), "");
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::chrono::microseconds pause(100);
  while (!store->check({here(peer)})) {
    OSLO_CHECK_AS(peer, std::chrono::steady_clock::now() < deadline, "rank ", peer_in_world,
                  " has not come to its first message with this one, on ", device, ", within ",
                  to_text(timeout));
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_for(lock, pause, [this] { return aborted; });
    check_not_aborted();
    pause = std::min<std::chrono::microseconds>(pause * 2, std::chrono::milliseconds(10));
  }
}

/// A communicator is there after its first message; both ranks make the two in one order.
void DeviceMessages::Pair::make_communicators() {
  const c10::AutoGradMode no_grad(false);
  const c10::OptionalStreamGuard apart(stream_behind_current(device));
  const at::Tensor token = at::empty({1}, at::TensorOptions(at::kByte).device(device));
  const auto make_way = [&](const char* name, int to) {
    BackendPtr way = make(c10::make_intrusive<c10d::PrefixStore>(name, store));
    std::vector<at::Tensor> one{token};
    const WorkPtr work = to == peer ? way->send(one, peer, 0) : way->recv(one, peer, 0);
    work->wait();  // the stream, not the host
    return way;
  };
  BackendPtr first = make_way("up", std::max(rank, peer));
  BackendPtr second = make_way("down", std::min(rank, peer));
  const std::lock_guard<std::mutex> lock(mutex);
  up = std::move(first);
  down = std::move(second);
}

void DeviceMessages::Pair::meet() {
  std::exception_ptr why;
  try {
    // An event that ends makes its own device current and then the one from before: that would wake
    // a device that this rank does not use.
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    await_peer();
    make_communicators();
  } catch (const std::exception&) {
    why = std::current_exception();
  }
  const std::lock_guard<std::mutex> lock(mutex);
  failure = why;
  met = !why;
  if (aborted) {
    break_off();
  } else if (met) {
    for (const auto& send : waiting) send->start();
  }
  waiting.clear();
  changed.notify_all();
}

/// This and what follows are called under the mutex.
void DeviceMessages::Pair::check_not_aborted() const {
  OSLO_CHECK_AS(peer, !aborted, "messages with rank ", peer_in_world, " were broken off");
}

/// Throws if they do not meet, or have parted.
void DeviceMessages::Pair::wait_until_met(std::unique_lock<std::mutex>& lock) {
  changed.wait(lock, [this] { return ended(); });
  if (failure) std::rethrow_exception(failure);
  check_not_aborted();  // NCCL would make a new communicator
}

void DeviceMessages::Pair::break_off() {
  aborted = true;
  changed.notify_all();
  if (!met) return;  // `meet` comes to it
  up->abort();
  down->abort();
}

DeviceMessages::DeviceMessages(StorePtr store, int rank, std::chrono::milliseconds timeout,
                               Make make, std::vector<int> ranks)
    : store_(std::move(store)),
      rank_(rank),
      timeout_(timeout),
      make_(std::move(make)),
      ranks_(std::move(ranks)) {}

DeviceMessages::~DeviceMessages() {
  if (std::uncaught_exceptions() > 0) abort();
  for (const auto& [_, pair] : pairs_) {
    std::unique_lock<std::mutex> lock(pair->mutex);
    pair->changed.wait(lock, [&pair = pair] { return pair->ended(); });
    // Here, and in one order on all ranks: others may hold the pair longer.
    pair->up.reset();
    pair->down.reset();
  }
}

std::shared_ptr<DeviceMessages::Pair> DeviceMessages::pair_with(int peer, c10::Device device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = pairs_.find(peer);
  if (known != pairs_.end()) return known->second;
  const auto pair = std::make_shared<Pair>(*this, peer, device);
  std::thread([pair] { pair->meet(); }).detach();
  pairs_.emplace(peer, pair);
  return pair;
}

WorkPtr DeviceMessages::send(const at::Tensor& tensor, int to) {
  const std::shared_ptr<Pair> pair = pair_with(to, tensor.device());
  std::unique_lock<std::mutex> lock(pair->mutex);
  if (pair->ended()) {
    pair->wait_until_met(lock);
    return start_send(pair->sends(), tensor, to);
  }
  pair->waiting.push_back(c10::make_intrusive<LateSend>(pair, tensor));
  return pair->waiting.back();
}

WorkPtr DeviceMessages::receive(const at::Tensor& tensor, int from) {
  const std::shared_ptr<Pair> pair = pair_with(from, tensor.device());
  {
    std::unique_lock<std::mutex> lock(pair->mutex);
    pair->wait_until_met(lock);
  }
  std::vector<at::Tensor> one{tensor};
  return pair->receives().recv(one, from, /*tag=*/0);
}

void DeviceMessages::abort() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [_, pair] : pairs_) {
    const std::lock_guard<std::mutex> meeting(pair->mutex);
    pair->break_off();
  }
}

}  // namespace oslo
