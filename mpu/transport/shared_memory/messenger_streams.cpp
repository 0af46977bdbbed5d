#include <algorithm>

#include "mpu/base/error.h"
#include "mpu/transport/shared_memory/messenger.h"

// How messages get into the channels and out of them. Everything here holds the messenger's mutex.
namespace oslo::shared_memory {
namespace {

/// So much is moved before the other side hears of it: it works on that meanwhile.
constexpr size_t kStep = 64 * 1024;

}  // namespace

void Messenger::move_all() {
  if (broken_) return;
  try {
    std::vector<bool> busy(member().size(), false);
    for (auto next = sends_.begin(); next != sends_.end();) {
      const std::shared_ptr<Transfer> send = *next++;
      // Messages to one rank go one after the other.
      if (!busy[send->peer]) push(*send);
      busy[send->peer] = !send->done;
    }
    sends_.remove_if([](const auto& send) { return send->done.load(); });
    for (int from = 0; from < member().size(); ++from) pull(from);
  } catch (const std::exception& error) {
    fail_all(std::current_exception());
    // Somewhere in a stream of bytes nobody knows any more where a message begins.
    broken_ = true;
    member().abort(error.what());
  }
}

void Messenger::push(Transfer& send) {
  Ring to = ring(rank(), send.peer);
  bool moved = false;
  if (!send.under_way && to.room() >= sizeof(Envelope)) {
    const Envelope envelope{send.buffer.bytes(), send.tag, static_cast<int8_t>(send.buffer.type())};
    to.write(&envelope, sizeof(envelope));
    send.under_way = moved = true;
  }
  while (send.under_way && send.moved < send.buffer.bytes() && to.room() > 0) {
    const size_t bytes = std::min({to.room(), send.buffer.bytes() - send.moved, kStep});
    to.write(send.buffer.data() + send.moved, bytes);
    send.moved += bytes;
    moved = true;
    if (send.moved < send.buffer.bytes()) add_one(member().bell(send.peer));
  }
  if (moved) add_one(member().bell(send.peer));
  if (send.under_way && send.moved == send.buffer.bytes()) finish(send, nullptr);
}

void Messenger::pull(int from) {
  Inbox& inbox = inboxes_[from];
  Ring source = ring(from, rank());
  while (true) {
    if (!inbox.in_message) {
      if (!awaited(from) || source.available() == 0) return;
      begin_message(from, source);
    }
    const size_t left = inbox.envelope.bytes - inbox.moved;
    const size_t bytes = std::min({left, source.available(), kStep});
    if (left > 0 && bytes == 0) return;
    std::byte* const to = inbox.transfer ? inbox.transfer->buffer.data() : inbox.bytes.data();
    if (bytes > 0) source.read(to + inbox.moved, bytes);
    inbox.moved += bytes;
    add_one(member().bell(from));
    if (inbox.moved == inbox.envelope.bytes) end_message(from);
  }
}

bool Messenger::awaited(int from) const {
  for (const auto& receive : receives_) {
    if (receive->peer == from || receive->peer < 0) return true;
  }
  return false;
}

Messenger::Transfers::iterator Messenger::find_receive(int from, int tag) {
  return std::find_if(receives_.begin(), receives_.end(), [&](const auto& receive) {
    return receive->tag == tag && (receive->peer == from || receive->peer < 0);
  });
}

void Messenger::begin_message(int from, Ring& source) {
  Inbox& inbox = inboxes_[from];
  source.read(&inbox.envelope, sizeof(Envelope));
  const auto receive = find_receive(from, inbox.envelope.tag);
  if (receive == receives_.end()) {
    put_aside(from);
  } else {
    check_fit(**receive, from, inbox.envelope);
    inbox.transfer = *receive;
    inbox.transfer->peer = from;
    receives_.erase(receive);
    ++receiving_;
  }
  inbox.in_message = true;
  inbox.moved = 0;
}

void Messenger::put_aside(int from) {
  Inbox& inbox = inboxes_[from];
  // Before there is memory for it.
  const size_t bytes = inbox.envelope.bytes + sizeof(Aside);
  if (aside_ > 0 && aside_ + bytes > most_aside_) {
    member().fail_group(c10::str(
        member().name_of_rank(rank()), " of group ", member().group(), " keeps ", aside_,
        " bytes of messages that it has not received yet, and ", member().name_of_rank(from),
        " has sent another of ", inbox.envelope.bytes, " bytes with tag ", inbox.envelope.tag,
        ": receive messages in the order in which they are sent (the limit is ", most_aside_,
        " bytes)"));
  }
  aside_ += bytes;
  inbox.bytes.assign(inbox.envelope.bytes, std::byte{});
}

void Messenger::end_message(int from) {
  Inbox& inbox = inboxes_[from];
  inbox.in_message = false;
  if (inbox.transfer) {
    --receiving_;
    finish(*std::exchange(inbox.transfer, nullptr), nullptr);
    return;
  }
  inbox.aside.push_back({inbox.envelope, std::move(inbox.bytes)});
  inbox.bytes.clear();
  // It may have been asked for while it was on its way.
  const auto receive = find_receive(from, inbox.envelope.tag);
  if (receive != receives_.end()) take_aside(std::shared_ptr<Transfer>(*receive));
}

void Messenger::take_aside(const std::shared_ptr<Transfer>& receive) {
  for (int from = 0; from < member().size(); ++from) {
    if (receive->peer >= 0 && receive->peer != from) continue;
    auto& aside = inboxes_[from].aside;
    const auto message = std::find_if(aside.begin(), aside.end(), [&](const Aside& candidate) {
      return candidate.envelope.tag == receive->tag;
    });
    if (message == aside.end()) continue;
    check_fit(*receive, from, message->envelope);
    copy_bytes(receive->buffer.data(), message->bytes.data(), message->bytes.size());
    aside_ -= message->bytes.size() + sizeof(Aside);
    aside.erase(message);
    receives_.remove(receive);
    receive->peer = from;
    finish(*receive, nullptr);
    return;
  }
}

void Messenger::check_fit(const Transfer& receive, int from, const Envelope& envelope) {
  const auto type = static_cast<c10::ScalarType>(envelope.type);
  if (envelope.bytes == receive.buffer.bytes() && type == receive.buffer.type()) return;
  member().fail_group(c10::str(
      member().name_of_rank(from), " sent ", envelope.bytes, " bytes of ", type, " with tag ",
      envelope.tag, " to ", member().name_of_rank(rank()), " of group ", member().group(),
      ", which receives ", receive.buffer.bytes(), " bytes of ", receive.buffer.type()));
}

void Messenger::finish(Transfer& transfer, std::exception_ptr error) {
  if (!error && transfer.buffer.is_copy()) transfer.buffer.write_back();
  transfer.error = std::move(error);
  transfer.done.store(true, std::memory_order_release);
  if (transfer.future) settled_.push_back(transfer.shared_from_this());
  add_one(member().bell(rank()));  // others of this rank's threads may wait for it
}

void Messenger::fail_if(const std::function<bool(const Transfer&)>& hopeless,
                        const std::exception_ptr& error) {
  for (Transfers* list : {&sends_, &receives_}) {
    for (const auto& transfer : *list) {
      if (!transfer->done && hopeless(*transfer)) finish(*transfer, error);
    }
    list->remove_if([](const auto& transfer) { return transfer->done.load(); });
  }
  for (Inbox& inbox : inboxes_) {
    if (!inbox.transfer || !hopeless(*inbox.transfer)) continue;
    --receiving_;
    // The rest of it still comes, and goes nowhere else.
    aside_ += inbox.envelope.bytes + sizeof(Aside);
    inbox.bytes.assign(inbox.envelope.bytes, std::byte{});
    finish(*std::exchange(inbox.transfer, nullptr), error);
  }
}

}  // namespace oslo::shared_memory
