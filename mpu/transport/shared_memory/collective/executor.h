#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "mpu/transport/shared_memory/collective/collective.h"

namespace oslo::shared_memory {

/// One call of the user's: the collectives that it consists of, and what becomes of them. The
/// members below the line are guarded by the executor's mutex.
struct Task {
  void add(std::unique_ptr<Collective> collective) { collectives.push_back(std::move(collective)); }
  /// The same for one that writes `output`.
  void add(std::unique_ptr<Collective> collective, const Buffer& output) {
    collective->writes(output);
    add(std::move(collective));
  }
  void add(std::unique_ptr<Collective> collective, const Buffers& outputs) {
    for (const Buffer& output : outputs) collective->writes(output);
    add(std::move(collective));
  }

  c10::SmallVector<std::unique_ptr<Collective>, 1> collectives;
  std::vector<at::Tensor> outputs;
  std::chrono::milliseconds timeout{0};
  bool caller_waits = false;  ///< until it is done: then the calling thread does it
  c10d::OpType type = c10d::OpType::UNKNOWN;
  uint64_t sequence = 0;
  std::atomic<bool> done = false;
  // ---
  bool begun = false;
  std::exception_ptr error;
  c10::intrusive_ptr<c10::ivalue::Future> future;  ///< made when it is asked for
};

/// Does one group's collectives, in the order of the calls. Whoever waits for one does it, together
/// with those before it: no change of threads. Those that nobody waits for are done by a thread of
/// the executor's, so that they overlap with what the caller does.
///
/// No rank may depend on another one calling `wait`. So a call wakes the thread at once, except for
/// the quick ones, of which peers need nothing after the first step: `start` does that one itself,
/// and the thread is woken when somebody looks at the result without waiting, drops it, or starts
/// another one before it is done.
class Executor : public std::enable_shared_from_this<Executor> {
 public:
  explicit Executor(std::unique_ptr<Member> member) : member_(std::move(member)) {}

  Member& member() { return *member_; }
  uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

  /// Failures come out of the Work, never of this.
  c10::intrusive_ptr<c10d::Work> start(std::shared_ptr<Task> task);

  /// Returns when `task` is done; throws its failure.
  void wait(Task& task);
  /// The same, while another thread does it; throws when the time is over.
  void wait(Task& task, std::chrono::milliseconds limit);
  /// Makes sure that `task` gets done without anybody waiting.
  void hurry(Task& task);
  c10::intrusive_ptr<c10::ivalue::Future> future_of(Task& task);
  std::exception_ptr error_of(Task& task);

  /// Takes the number of an operation that this rank has refused.
  void skip();

  /// Does what has been started.
  void finish();
  /// The same, ends the thread and leaves the group. No more tasks are taken.
  void stop();

 private:
  using Lock = std::unique_lock<std::mutex>;
  void wake_thread();
  void thread_loop();
  void begin(Task& task);
  void perform(Task& task);
  void run_front(Lock& lock);
  void wait_until_done(Task& task, Lock& lock);
  void finish(Lock& lock);

  std::unique_ptr<Member> member_;  ///< used by whoever runs the front, or holds the mutex while no
                                    ///< one does
  std::atomic<uint64_t> sequence_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;  ///< a task is done, nobody runs the front
  std::condition_variable wake_;     ///< for the thread
  std::deque<std::shared_ptr<Task>> queue_;
  bool running_ = false;  ///< somebody runs the front
  bool hurried_ = false;  ///< the thread is to do what is in the queue
  bool stopping_ = false;
  std::thread thread_;
};

/// In scope while a call is checked and started: one that throws is counted. The ranks stay in step
/// where all refuse it; one that refuses it alone is found out at its next operation.
class CountedCall {
 public:
  explicit CountedCall(Executor& executor)
      : executor_(executor), exceptions_(std::uncaught_exceptions()) {}
  ~CountedCall() {
    if (std::uncaught_exceptions() > exceptions_) executor_.skip();
  }
  CountedCall(const CountedCall&) = delete;
  CountedCall& operator=(const CountedCall&) = delete;

 private:
  Executor& executor_;
  int exceptions_;
};

}  // namespace oslo::shared_memory
