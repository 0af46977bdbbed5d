#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace oslo {

/// A thread for calls that stop in the middle and are gone on with later (a coroutine). Whoever
/// resumes a call waits until it stops or returns, so that of the two one runs at a time; what one
/// wrote the other sees. The call runs as its starter's thread would: with its gradient, inference
/// and autocast modes, its number of threads for operators, its current device and stream, its
/// hooks on saved tensors and its comparison of ranks. Thread-local variables of the user's own are
/// another thread's.
///
/// One call after another may use it. Making one costs a thread, resuming two switches of threads.
class CallThread {
 public:
  CallThread();
  /// A call that has not returned ends by an exception in its `pause` that is no std::exception.
  ~CallThread();
  CallThread(const CallThread&) = delete;
  CallThread& operator=(const CallThread&) = delete;

  /// Takes the call over, and does not begin it. The one before has returned, or thrown.
  void start(std::function<void()> call);
  /// Until the call stops or returns. Throws what it throws.
  void resume();
  /// In the call: goes back to whoever resumed it, and on at the next `resume`.
  void pause();
  /// Whether a call has been started and has neither returned nor thrown.
  bool busy() const { return static_cast<bool>(call_); }

 private:
  enum class Turn { caller, call };
  struct Ended {};

  void serve();
  void give_turn(std::unique_lock<std::mutex>& lock, Turn to, Turn until);

  std::mutex mutex_;
  std::condition_variable changed_;
  Turn turn_ = Turn::caller;
  bool ends_ = false;
  std::function<void()> call_;
  std::exception_ptr error_;
  std::thread thread_;  ///< last: it uses the others
};

/// Threads that wait for their next call: a step takes as many as it has calls under way at a time.
using CallThreads = std::vector<std::unique_ptr<CallThread>>;

}  // namespace oslo
