#include "mpu/launch/timed_store.h"

#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/base/time_limit.h"

namespace oslo {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// One call: what the helper thread is to do, and what became of it. Owned by both sides, as either
/// may be gone first.
struct TimedStore::Call {
  std::function<void()> work;
  std::optional<Clock::time_point> begun;
  bool done = false;
  std::exception_ptr error;
};

/// What the helper thread shares with those who ask.
struct TimedStore::Line {
  explicit Line(std::string name) : name(std::move(name)) {}

  const std::string name;
  c10::intrusive_ptr<c10d::Store> store;  ///< used by the helper thread alone
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Call>> calls;
  std::string gone;  ///< why nothing is asked any more
  bool ending = false;
  std::thread helper;

  void serve() {
    c10::setThreadName("oslo_store");
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ending || !calls.empty(); });
      if (calls.empty() || !gone.empty()) break;
      const std::shared_ptr<Call> call = calls.front();
      calls.pop_front();
      call->begun = Clock::now();
      changed.notify_all();
      lock.unlock();
      std::string broken;
      try {
        call->work();
      } catch (const c10::DistNetworkError& error) {
        call->error = std::current_exception();
        if (store) {
          // A stream of answers has no place to go on from.
          broken = c10::str(name, " has gone: ", first_line(message_of(error)));
          call->error = std::make_exception_ptr(PeerError(broken));
        }
      } catch (const std::exception&) {
        call->error = std::current_exception();
      }
      lock.lock();
      call->done = true;
      if (gone.empty()) gone = broken;
      changed.notify_all();
    }
    lock.unlock();
    store.reset();
  }
};

TimedStore::TimedStore(Make make, milliseconds limit, std::string name)
    : c10d::Store(limit), line_(std::make_shared<Line>(std::move(name))), make_(std::move(make)) {
  line_->helper = std::thread([line = line_] { line->serve(); });
  auto connect = std::make_shared<Call>();
  connect->work = [line = line_.get(), make = make_] { line->store = make(); };
  try {
    run(connect, "connecting", longer(limit));
  } catch (const std::exception& error) {
    {
      const std::lock_guard<std::mutex> lock(line_->mutex);
      line_->ending = true;
      line_->changed.notify_all();
    }
    line_->helper.detach();
    fail_as(ErrorKind::peer, line_->name, " cannot be reached: ", first_line(message_of(error)));
  }
}

TimedStore::~TimedStore() {
  bool gone = false;
  {
    const std::lock_guard<std::mutex> lock(line_->mutex);
    line_->ending = true;
    gone = !line_->gone.empty();
    line_->changed.notify_all();
  }
  if (gone) {
    line_->helper.detach();
  } else {
    line_->helper.join();
  }
}

/// For an answer that comes after a wait of `limit`. A server that is stopped for a while has as
/// long for that as for any other answer, however short the wait.
milliseconds TimedStore::longer(milliseconds limit) const {
  return std::max(timeout_, limit + std::min<milliseconds>(timeout_, std::chrono::seconds(10)));
}

void TimedStore::run(const std::shared_ptr<Call>& call, const std::string& what,
                     milliseconds limit) {
  Line& line = *line_;
  std::unique_lock<std::mutex> lock(line.mutex);
  if (line.gone.empty()) {
    line.calls.push_back(call);
    line.changed.notify_all();
  }
  // A call's time begins with it: those before it have limits of their own.
  while (!call->done && line.gone.empty()) {
    if (!call->begun) {
      line.changed.wait(lock);
    } else if (line.changed.wait_until(lock, *call->begun + limit) == std::cv_status::timeout &&
               !call->done && line.gone.empty()) {
      line.gone =
          c10::str(line.name, " has not answered for ", oslo::to_text(limit), " (", what,
                   "): its host has ended, is stopped or cannot be reached; ", kTimeLimitHint);
      line.changed.notify_all();
    }
  }
  if (!call->done) fail_as(ErrorKind::peer, line.gone);
  if (call->error) std::rethrow_exception(call->error);
}

template <typename Result, typename Ask>
Result TimedStore::ask(const std::string& what, milliseconds limit, Ask ask) {
  auto call = std::make_shared<Call>();
  auto result = std::make_shared<Result>();
  call->work = [line = line_.get(), result, ask = std::move(ask), own = timeout_] {
    line->store->setTimeout(own);
    *result = ask(*line->store);
  };
  run(call, what, limit);
  return std::move(*result);
}

c10::intrusive_ptr<c10d::Store> TimedStore::clone() {
  return c10::make_intrusive<TimedStore>(make_, timeout_, line_->name);
}

void TimedStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask<bool>("set of " + key, timeout_, [=](c10d::Store& store) {
    store.set(key, value);
    return true;
  });
}

std::vector<uint8_t> TimedStore::compareSet(const std::string& key,
                                            const std::vector<uint8_t>& expected,
                                            const std::vector<uint8_t>& desired) {
  return ask<std::vector<uint8_t>>("compareSet of " + key, timeout_, [=](c10d::Store& store) {
    return store.compareSet(key, expected, desired);
  });
}

std::vector<uint8_t> TimedStore::get(const std::string& key) {
  return ask<std::vector<uint8_t>>("get of " + key, longer(timeout_),
                                   [=](c10d::Store& store) { return store.get(key); });
}

int64_t TimedStore::add(const std::string& key, int64_t value) {
  return ask<int64_t>("add to " + key, timeout_,
                      [=](c10d::Store& store) { return store.add(key, value); });
}

bool TimedStore::deleteKey(const std::string& key) {
  return ask<bool>("deleteKey of " + key, timeout_,
                   [=](c10d::Store& store) { return store.deleteKey(key); });
}

bool TimedStore::check(const std::vector<std::string>& keys) {
  return ask<bool>("check of " + (keys.empty() ? "" : keys.front()), timeout_,
                   [=](c10d::Store& store) { return store.check(keys); });
}

int64_t TimedStore::getNumKeys() {
  return ask<int64_t>("getNumKeys", timeout_,
                      [](c10d::Store& store) { return store.getNumKeys(); });
}

void TimedStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

void TimedStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  ask<bool>("wait for " + (keys.empty() ? "" : keys.front()), longer(timeout),
            [=](c10d::Store& store) {
              store.wait(keys, timeout);
              return true;
            });
}

void TimedStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  ask<bool>("append to " + key, timeout_, [=](c10d::Store& store) {
    store.append(key, value);
    return true;
  });
}

std::vector<std::vector<uint8_t>> TimedStore::multiGet(const std::vector<std::string>& keys) {
  return ask<std::vector<std::vector<uint8_t>>>(
      "multiGet of " + (keys.empty() ? "" : keys.front()), longer(timeout_),
      [=](c10d::Store& store) { return store.multiGet(keys); });
}

void TimedStore::multiSet(const std::vector<std::string>& keys,
                          const std::vector<std::vector<uint8_t>>& values) {
  ask<bool>("multiSet of " + (keys.empty() ? "" : keys.front()), timeout_, [=](c10d::Store& store) {
    store.multiSet(keys, values);
    return true;
  });
}

}  // namespace oslo
