#include "parallelizers/pipeline/run/call_thread.h"

#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/pipeline/run/caller_state.h"

namespace oslo {

CallThread::CallThread() : thread_([this] { serve(); }) {}

CallThread::~CallThread() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    ends_ = true;
    give_turn(lock, Turn::call, Turn::caller);
  }
  thread_.join();
}

void CallThread::start(std::function<void()> call) {
  OSLO_CHECK(!busy(), "a thread that is in a call was given another one");
  call_ = with_state_of_this_thread(std::move(call));
}

void CallThread::resume() {
  std::unique_lock<std::mutex> lock(mutex_);
  give_turn(lock, Turn::call, Turn::caller);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void CallThread::pause() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!ends_) give_turn(lock, Turn::caller, Turn::call);
  if (ends_) throw Ended();
}

void CallThread::give_turn(std::unique_lock<std::mutex>& lock, Turn to, Turn until) {
  turn_ = to;
  changed_.notify_all();
  changed_.wait(lock, [&] { return turn_ == until; });
}

/// The thread: a call whenever it is its turn.
void CallThread::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return turn_ == Turn::call; });
  while (!ends_) {
    lock.unlock();
    std::exception_ptr error;
    try {
      call_();
    } catch (const Ended&) {
      // Nobody waits for it any more.
    } catch (...) {
      error = std::current_exception();
    }
    call_ = nullptr;  // here, with all that it holds
    lock.lock();
    error_ = std::move(error);
    if (ends_) break;
    give_turn(lock, Turn::caller, Turn::call);
  }
  turn_ = Turn::caller;
  changed_.notify_all();
}

}  // namespace oslo
