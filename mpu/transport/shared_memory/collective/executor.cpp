#include "mpu/transport/shared_memory/collective/executor.h"

#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>
#include <c10/util/StringUtil.h>
#include <c10/util/thread_name.h>

#include "mpu/base/error.h"

namespace oslo::shared_memory {
namespace {

class TaskWork final : public c10d::Work {
 public:
  TaskWork(std::shared_ptr<Executor> executor, std::shared_ptr<Task> task)
      : Work(executor->member().rank(), task->type),
        executor_(std::move(executor)),
        task_(std::move(task)) {}
  ~TaskWork() override {
    if (task_->done.load(std::memory_order_acquire)) return;
    try {
      executor_->hurry(*task_);
    } catch (const std::exception&) {
      // No thread to be had: whoever waits for a later operation, or ends the group, does this one.
    }
  }

  bool isCompleted() override {
    if (!task_->done.load(std::memory_order_acquire)) executor_->hurry(*task_);
    return task_->done.load(std::memory_order_acquire);
  }
  bool isSuccess() const override { return exception() == nullptr; }
  std::exception_ptr exception() const override { return executor_->error_of(*task_); }
  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout == kNoTimeout) {
      executor_->wait(*task_);
    } else {
      executor_->wait(*task_, timeout);
    }
    return true;
  }
  std::vector<at::Tensor> result() override { return task_->outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return executor_->future_of(*task_);
  }
  uint64_t getSequencenumber() const override { return task_->sequence; }
  void abort() override { executor_->member().abort("its work was aborted"); }

 private:
  std::shared_ptr<Executor> executor_;
  std::shared_ptr<Task> task_;
};

void settle(c10::ivalue::Future& future, const Task& task) {
  if (task.error) {
    future.setError(task.error);
  } else {
    future.markCompleted(c10::IValue(task.outputs));
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Work> Executor::start(std::shared_ptr<Task> task) {
  Lock lock(mutex_);
  OSLO_CHECK(!stopping_, "the group has been shut down");
  for (const auto& collective : task->collectives) collective->set_sequence(++sequence_);
  task->sequence = sequence();
  const bool alone = queue_.empty() && !running_;
  queue_.push_back(task);
  if (task->caller_waits) {
    wait_until_done(*task, lock);
  } else if (alone && task->collectives.size() == 1 && task->collectives[0]->quick()) {
    begin(*task);
  } else {
    wake_thread();
  }
  return c10::make_intrusive<TaskWork>(shared_from_this(), std::move(task));
}

void Executor::skip() {
  const Lock lock(mutex_);
  ++sequence_;
}

void Executor::begin(Task& task) {
  task.begun = true;
  try {
    task.collectives[0]->begin(*member_, task.timeout);
  } catch (...) {
    task.error = std::current_exception();
  }
}

void Executor::perform(Task& task) {
  try {
    if (task.error) std::rethrow_exception(task.error);
    for (const auto& collective : task.collectives) {
      // To LibTorch's profiler: on the thread that does it, whoever asked for it.
      RECORD_USER_SCOPE(c10::str("shm:", name_of(collective->heading().kind)));
      if (!task.begun) collective->begin(*member_, task.timeout);
      task.begun = false;
      collective->finish(*member_);
    }
  } catch (const std::exception& error) {
    task.error = std::current_exception();
    // Nobody could go on: this rank is no longer in step with the others.
    member_->abort(error.what());
  }
}

void Executor::run_front(Lock& lock) {
  const std::shared_ptr<Task> task = queue_.front();
  running_ = true;
  lock.unlock();
  perform(*task);
  lock.lock();
  running_ = false;
  queue_.pop_front();
  task->done.store(true, std::memory_order_release);
  hurried_ = hurried_ && !queue_.empty();
  changed_.notify_all();
  if (hurried_) wake_.notify_one();
  if (task->future) {
    // Callbacks may start operations, and wait for them.
    lock.unlock();
    settle(*task->future, *task);
    lock.lock();
  }
}

void Executor::wait_until_done(Task& task, Lock& lock) {
  while (!task.done) {
    if (running_) {
      changed_.wait(lock);
    } else {
      run_front(lock);
    }
  }
}

void Executor::wait(Task& task) {
  if (!task.done.load(std::memory_order_acquire)) {
    Lock lock(mutex_);
    wait_until_done(task, lock);
  }
  if (task.error) std::rethrow_exception(task.error);
}

void Executor::wait(Task& task, std::chrono::milliseconds limit) {
  {
    Lock lock(mutex_);
    if (!task.done) wake_thread();
    const bool done = changed_.wait_for(lock, limit, [&] { return task.done.load(); });
    OSLO_CHECK_AS(peer, done, member_->describe(task.collectives.back()->heading()),
                  " is not done after ", limit.count(), " ms");
  }
  if (task.error) std::rethrow_exception(task.error);
}

void Executor::hurry(Task& task) {
  Lock lock(mutex_);
  if (task.done) return;
  const bool arrived = !running_ && queue_.front().get() == &task && task.begun &&
                       (task.error || member_->all_here());
  if (arrived) {
    run_front(lock);
  } else {
    wake_thread();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> Executor::future_of(Task& task) {
  hurry(task);
  Lock lock(mutex_);
  if (!task.future) {
    task.future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    if (task.done) settle(*task.future, task);
  }
  return task.future;
}

std::exception_ptr Executor::error_of(Task& task) {
  const Lock lock(mutex_);
  return task.done ? task.error : nullptr;
}

void Executor::wake_thread() {
  hurried_ = true;
  if (!thread_.joinable()) {
    thread_ = std::thread([self = shared_from_this()] { self->thread_loop(); });
  }
  wake_.notify_one();
}

void Executor::thread_loop() {
  c10::setThreadName("oslo_shm");
  Lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || (hurried_ && !running_ && !queue_.empty()); });
    if (stopping_) return;
    run_front(lock);
  }
}

void Executor::finish(Lock& lock) {
  while (!queue_.empty()) {
    if (running_) {
      changed_.wait(lock);
    } else {
      run_front(lock);
    }
  }
}

void Executor::finish() {
  Lock lock(mutex_);
  finish(lock);
}

void Executor::stop() {
  {
    Lock lock(mutex_);
    if (stopping_) return;
    finish(lock);
    stopping_ = true;
    wake_.notify_one();
  }
  // A future's callback may drop the last reference to the group.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else if (thread_.joinable()) {
    thread_.join();
  }
  member_->leave();
}

}  // namespace oslo::shared_memory
