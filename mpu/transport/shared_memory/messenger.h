#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "mpu/transport/shared_memory/collective/buffer.h"
#include "mpu/transport/shared_memory/collective/executor.h"
#include "mpu/transport/shared_memory/segment/ring.h"

namespace oslo::shared_memory {

/// A send or a receive. Guarded by the messenger's mutex, except what never changes.
struct Transfer : std::enable_shared_from_this<Transfer> {
  Transfer(const at::Tensor& tensor, bool sends, int peer, int tag,
           std::chrono::milliseconds timeout);

  const at::Tensor tensor;
  const bool sends;
  const int tag;
  const std::chrono::milliseconds timeout;
  int peer;  ///< -1: any, until it is known
  Buffer buffer;
  bool under_way = false;
  size_t moved = 0;
  std::atomic<bool> done = false;
  std::exception_ptr error;
  c10::intrusive_ptr<c10::ivalue::Future> future;
};

/// Sends and receives between two ranks of a group, matched by tag, in the order of the calls for
/// each tag. A channel is a stream of messages; one that nobody has asked for yet stays in it, and
/// is put aside when something behind it is asked for. So a rank keeps at most `most_aside` bytes
/// that nobody may ever ask for, or one message.
///
/// Every call moves at once what can be moved. Whoever waits moves what there is, of all transfers;
/// while nobody waits, a thread does.
class Messenger : public std::enable_shared_from_this<Messenger> {
 public:
  /// `most_aside`: bytes of messages put aside, above which the group fails.
  Messenger(std::shared_ptr<Executor> executor, size_t most_aside);

  c10::intrusive_ptr<c10d::Work> start(std::shared_ptr<Transfer> transfer);

  /// Returns when it is done; throws its failure. `limit` 0: the transfer's own time.
  void wait(Transfer& transfer, std::chrono::milliseconds limit);
  bool poll(Transfer& transfer);
  c10::intrusive_ptr<c10::ivalue::Future> future_of(Transfer& transfer);
  std::exception_ptr error_of(Transfer& transfer);
  int rank() const { return member().rank(); }

  /// Finishes sending, gives up receiving, and ends the thread.
  void stop();

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Transfers = std::list<std::shared_ptr<Transfer>>;

  /// A message that is put aside.
  struct Aside {
    Envelope envelope;
    std::vector<std::byte> bytes;
  };
  /// What this rank knows of the stream from another one.
  struct Inbox {
    bool in_message = false;
    Envelope envelope;  ///< of the message that is being read
    size_t moved = 0;
    std::shared_ptr<Transfer> transfer;  ///< where it goes to; nowhere: aside
    std::vector<std::byte> bytes;        ///< of one that is put aside
    std::deque<Aside> aside;
  };

  Member& member() const { return executor_->member(); }
  Ring ring(int from, int to) const {
    return {member().channel(from, to), member().ring(from, to), member().ring_bytes()};
  }
  void move_all();
  void push(Transfer& transfer);
  void pull(int from);
  void begin_message(int from, Ring& source);
  void put_aside(int from);
  void end_message(int from);
  void take_aside(const std::shared_ptr<Transfer>& receive);
  Transfers::iterator find_receive(int from, int tag);
  bool awaited(int from) const;
  void check_fit(const Transfer& receive, int from, const Envelope& envelope);
  void finish(Transfer& transfer, std::exception_ptr error);
  void fail_all(const std::exception_ptr& error);
  /// What others sent before the group failed is there, and received.
  void fail_all_but_arrived(const std::exception_ptr& error);
  void settle_futures(Lock& lock);
  void fail_if(const std::function<bool(const Transfer&)>& hopeless,
               const std::exception_ptr& error);
  void check_peers();
  std::exception_ptr await_bell(uint32_t heard, const std::function<void()>& check);
  void commit(const Transfer& transfer);
  bool pending() const { return !sends_.empty() || !receives_.empty() || receiving_ > 0; }
  void thread_loop();

  std::shared_ptr<Executor> executor_;
  std::mutex mutex_;
  std::condition_variable wake_;  ///< for the thread
  Transfers sends_;               ///< not done, in the order of the calls
  Transfers receives_;            ///< not matched yet
  const size_t most_aside_;
  size_t aside_ = 0;                                ///< bytes put aside, headers included
  int receiving_ = 0;                               ///< matched, not done
  std::vector<Inbox> inboxes_;                      ///< by rank
  std::set<std::pair<int, int>> committed_;         ///< channels, as from and to
  std::vector<std::shared_ptr<Transfer>> settled_;  ///< done; their futures are to be told
  int waiting_ = 0;
  bool stopping_ = false;
  bool broken_ = false;  ///< where a message begins is not known any more
  std::thread thread_;
};

}  // namespace oslo::shared_memory
