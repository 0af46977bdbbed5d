#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace oslo {

/// Messages of tensors on a device between the ranks of a group, over NCCL, where a send waits: two
/// ranks make a communicator when they have their first message over it, and each waits there, on
/// the host, for the other; every send then waits, on the device, for its receive.
///
/// So two ranks have a communicator for each direction, and a thread makes both. What is sent
/// before they are there is started by that thread, behind what the caller's stream held: a send
/// never waits for its receiver, and ranks of a ring that all send first do not wait for each
/// other. The messages from one rank to another come in the order in which they were sent.
///
/// Any thread may call it, one at a time for messages of one direction.
class DeviceMessages {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  /// Makes a backend of the whole group over a store of its own; it is used for one pair of ranks.
  using Make = std::function<BackendPtr(const StorePtr& store)>;

  /// `rank` of the group, whose store is `store`. Two ranks come to their first message within
  /// `timeout` of each other, or both get an `Error`.
  /// `ranks`: of the group's members in the world, for errors; empty: the same.
  DeviceMessages(StorePtr store, int rank, std::chrono::milliseconds timeout, Make make,
                 std::vector<int> ranks = {});
  /// Returns when what has been sent is on its way, unless this rank is failing.
  ~DeviceMessages();
  DeviceMessages(const DeviceMessages&) = delete;
  DeviceMessages& operator=(const DeviceMessages&) = delete;

  /// Contiguous tensors on one device, the same one in all calls. As with NCCL the host waits for
  /// nothing; `wait` of what is returned has the then current stream wait.
  WorkPtr send(const at::Tensor& tensor, int to);
  /// Waits, on the host, until the sender has come to its first message.
  WorkPtr receive(const at::Tensor& tensor, int from);

  /// Breaks off what is under way. No more is sent or received.
  void abort();

 private:
  struct Pair;
  class LateSend;
  std::shared_ptr<Pair> pair_with(int peer, c10::Device device);

  const StorePtr store_;
  const int rank_;
  const std::chrono::milliseconds timeout_;
  const Make make_;
  const std::vector<int> ranks_;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<Pair>> pairs_;  ///< by the other rank
};

}  // namespace oslo
