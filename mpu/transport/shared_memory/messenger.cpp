#include "mpu/transport/shared_memory/messenger.h"

#include <ATen/core/jit_type.h>
#include <c10/util/thread_name.h>

#include <algorithm>

#include "mpu/base/error.h"

namespace oslo::shared_memory {
namespace {

class TransferWork final : public c10d::Work {
 public:
  TransferWork(std::shared_ptr<Messenger> messenger, std::shared_ptr<Transfer> transfer)
      : Work(messenger->rank(), transfer->sends ? c10d::OpType::SEND : c10d::OpType::RECV),
        messenger_(std::move(messenger)),
        transfer_(std::move(transfer)) {}

  bool isCompleted() override { return messenger_->poll(*transfer_); }
  bool isSuccess() const override { return exception() == nullptr; }
  std::exception_ptr exception() const override { return messenger_->error_of(*transfer_); }
  int sourceRank() const override { return transfer_->peer; }
  bool wait(std::chrono::milliseconds timeout) override {
    messenger_->wait(*transfer_, timeout);
    return true;
  }
  std::vector<at::Tensor> result() override { return {transfer_->tensor}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return messenger_->future_of(*transfer_);
  }

 private:
  std::shared_ptr<Messenger> messenger_;
  std::shared_ptr<Transfer> transfer_;
};

std::string what(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

void settle(c10::ivalue::Future& future, const Transfer& transfer) {
  if (transfer.error) {
    future.setError(transfer.error);
  } else {
    future.markCompleted(c10::IValue(std::vector<at::Tensor>{transfer.tensor}));
  }
}

}  // namespace

Transfer::Transfer(const at::Tensor& tensor, bool sends, int peer, int tag,
                   std::chrono::milliseconds timeout)
    : tensor(tensor),
      sends(sends),
      tag(tag),
      timeout(timeout),
      peer(peer),
      buffer(sends ? Buffer::input(tensor) : Buffer::output(tensor, false)) {}

Messenger::Messenger(std::shared_ptr<Executor> executor, size_t most_aside)
    : executor_(std::move(executor)), most_aside_(most_aside), inboxes_(member().size()) {}

c10::intrusive_ptr<c10d::Work> Messenger::start(std::shared_ptr<Transfer> transfer) {
  Lock lock(mutex_);
  OSLO_CHECK(!stopping_, "the group has been shut down");
  // A receive finds out when it waits: what was sent before the group failed is still there.
  if (transfer->sends) member().check();
  commit(*transfer);
  if (transfer->sends) {
    sends_.push_back(transfer);
  } else {
    receives_.push_back(transfer);
    take_aside(transfer);
  }
  move_all();
  if (!transfer->done) {
    if (!thread_.joinable()) {
      thread_ = std::thread([self = shared_from_this()] { self->thread_loop(); });
    }
    wake_.notify_one();
  }
  settle_futures(lock);
  return c10::make_intrusive<TransferWork>(shared_from_this(), std::move(transfer));
}

void Messenger::commit(const Transfer& transfer) {
  for (int peer = 0; peer < member().size(); ++peer) {
    if (transfer.peer >= 0 && transfer.peer != peer) continue;
    const int from = transfer.sends ? rank() : peer, to = transfer.sends ? peer : rank();
    if (committed_.count({from, to}) != 0) continue;
    member().commit_channel(from, to);
    committed_.insert({from, to});
  }
}

void Messenger::fail_all(const std::exception_ptr& error) {
  fail_if([](const Transfer&) { return true; }, error);
}

void Messenger::fail_all_but_arrived(const std::exception_ptr& error) {
  move_all();
  fail_all(error);
}

void Messenger::settle_futures(Lock& lock) {
  while (!settled_.empty()) {
    const auto settled = std::exchange(settled_, {});
    lock.unlock();
    for (const auto& transfer : settled) settle(*transfer->future, *transfer);
    lock.lock();
  }
}

void Messenger::check_peers() {
  std::vector<std::string> why(member().size());
  int gone = 0;
  std::string last;
  for (int peer = 0; peer < member().size(); ++peer) {
    if (peer == rank()) continue;
    why[peer] = member().why_gone(peer);
    if (why[peer].empty()) continue;
    ++gone;
    last = why[peer];
  }
  if (gone == 0) return;
  const Lock lock(mutex_);
  // What they sent before they went is still there.
  move_all();
  const auto fail_peer = [&](int peer, const std::string& reason) {
    fail_if([&](const Transfer& transfer) { return transfer.peer == peer; },
            std::make_exception_ptr(
                PeerError(c10::str("a message between ", member().name_of_rank(rank()),
                                   " and another of "
                                   "group ",
                                   member().group(), ": ", reason))));
  };
  for (int peer = 0; peer < member().size(); ++peer) {
    if (!why[peer].empty()) fail_peer(peer, why[peer]);
  }
  if (gone == member().size() - 1) fail_peer(-1, last);
}

/// Sleeps until the bell rings again; returns what is wrong, if something is. `check` comes first
/// too: while other messages ring the bell all the time nobody sleeps.
std::exception_ptr Messenger::await_bell(uint32_t heard, const std::function<void()>& check) {
  try {
    check();
    await(
        member().bell(rank()), member().patience(), [&](uint32_t rung) { return rung != heard; },
        [&](bool slept) {
          member().check();
          if (slept) check_peers();
          if (slept) check();
        });
    return nullptr;
  } catch (const std::exception&) {
    return std::current_exception();
  }
}

void Messenger::wait(Transfer& transfer, std::chrono::milliseconds limit) {
  const bool own_time = limit.count() == 0;
  const auto time = own_time ? transfer.timeout : limit;
  const auto deadline = std::chrono::steady_clock::now() + time;
  bool late = false;
  const auto check = [&] {
    late = std::chrono::steady_clock::now() >= deadline;
    if (!late) return;
    const std::string peer = transfer.peer < 0 ? "any rank" : member().name_of_rank(transfer.peer);
    fail_as(ErrorKind::peer, transfer.sends ? "send to " : "receive from ", peer, " with tag ",
            transfer.tag, " over group ", member().group(), ": ", member().name_of_rank(rank()),
            " waited ", time.count(), " ms");
  };
  Lock lock(mutex_);
  ++waiting_;
  std::exception_ptr failure;
  while (true) {
    const uint32_t heard = member().bell(rank()).value.load(std::memory_order_acquire);
    move_all();
    settle_futures(lock);
    if (transfer.done || failure) break;
    lock.unlock();
    failure = await_bell(heard, check);
    lock.lock();
    if (failure && (!late || own_time)) fail_all_but_arrived(failure);
    if (failure && late && own_time) member().abort(what(failure));
  }
  if (--waiting_ == 0 && pending()) wake_.notify_one();
  if (transfer.done) failure = transfer.error;
  lock.unlock();
  if (failure) std::rethrow_exception(failure);
}

bool Messenger::poll(Transfer& transfer) {
  Lock lock(mutex_);
  if (!transfer.done) move_all();
  settle_futures(lock);
  return transfer.done;
}

c10::intrusive_ptr<c10::ivalue::Future> Messenger::future_of(Transfer& transfer) {
  Lock lock(mutex_);
  if (!transfer.future) {
    transfer.future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    if (transfer.done) settle(*transfer.future, transfer);
  }
  return transfer.future;
}

std::exception_ptr Messenger::error_of(Transfer& transfer) {
  const Lock lock(mutex_);
  return transfer.done ? transfer.error : nullptr;
}

void Messenger::thread_loop() {
  c10::setThreadName("oslo_shm_msg");
  Lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || (pending() && waiting_ == 0); });
    if (stopping_) return;
    const uint32_t heard = member().bell(rank()).value.load(std::memory_order_acquire);
    move_all();
    settle_futures(lock);
    if (stopping_ || !pending()) continue;
    lock.unlock();
    const std::exception_ptr failure = await_bell(heard, [] {});
    lock.lock();
    if (failure) fail_all_but_arrived(failure);
    settle_futures(lock);
  }
}

void Messenger::stop() {
  Lock lock(mutex_);
  if (stopping_) return;
  while (!sends_.empty()) {
    const std::shared_ptr<Transfer> last = sends_.back();
    lock.unlock();
    try {
      wait(*last, {});
    } catch (const std::exception&) {
      // Its Work says so.
    }
    lock.lock();
  }
  stopping_ = true;
  fail_all(std::make_exception_ptr(
      PeerError(member().name_of_rank(rank()) + " has left group " + member().group())));
  settle_futures(lock);
  wake_.notify_one();
  add_one(member().bell(rank()));
  lock.unlock();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace oslo::shared_memory
