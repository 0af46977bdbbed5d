#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <exception>

#include "mpu/base/error.h"
#include "mpu/group/expected_message.h"
#include "mpu/group/message_pieces.h"
#include "mpu/group/messages.h"

namespace oslo {

using namespace pieces;

namespace {

bool from_device(const TensorHeader& header) {
  return header.has_bytes() && header.device != c10::kCPU;
}

/// What `like` says, where nothing comes.
at::Tensor pretended(const at::Tensor& like) {
  return like.defined() ? at::zeros(like.sizes(), like.options()) : at::Tensor();
}

}  // namespace

std::vector<at::Tensor> PendingMessage::wait() {
  OSLO_CHECK(expected_ && !expected_->taken,
             "a started receive gives its tensors once; keep what wait() returned");
  messages_->receive_until(*expected_, /*only_arrival=*/false);
  expected_->taken = true;
  if (expected_->error) std::rethrow_exception(expected_->error);
  return std::move(expected_->tensors);
}

void PendingMessage::await_arrival() {
  OSLO_CHECK(expected_ && !expected_->taken,
             "a started receive that has been waited for already; await its arrival before wait()");
  messages_->receive_until(*expected_, /*only_arrival=*/true);
}

void PendingMessage::in_rounds() {
  expected_->in_rounds = true;
}

PendingMessage Messages::start_receive(int from, int tag, c10::ArrayRef<at::Tensor> like) {
  check("receive", from, tag);
  OSLO_CHECK(group_.mover != Mover::nothing || !like.empty(), "receive over group ", group_.name,
             ", in which nothing moves (a dry run): say what is expected (`like`)");
  PendingMessage pending;
  pending.messages_ = shared_from_this();
  pending.expected_ = std::make_shared<Expected>();
  Expected& expected = *pending.expected_;
  expected.from = from;
  expected.tag = tag;
  expected.rule = RuleScope::current();
  expected.like = like.vec();
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& queue = queues_[{from, tag}];
  if (!queue) queue = std::make_shared<Queue>();
  expected.queue = queue;
  queue->expected.push_back(pending.expected_);
  return pending;
}

void Messages::receive_until(Expected& expected, bool only_arrival) {
  const auto queue = expected.queue;
  const std::lock_guard<std::mutex> turn(queue->turn);
  while (!expected.done) {
    std::shared_ptr<Expected> next;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      next = queue->expected.front();
    }
    try {
      receive_header_of(*next);
      if (only_arrival && next.get() == &expected) return;
      receive(*next);
    } catch (const std::exception&) {
      next->error = std::current_exception();
    }
    next->done = true;
    const std::lock_guard<std::mutex> lock(mutex_);
    queue->expected.pop_front();
    if (queue->expected.empty()) queues_.erase({next->from, next->tag});
  }
}

void Messages::receive_header_of(Expected& expected) {
  if (expected.header) return;
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope(expected.rule);
  if (group_.mover == Mover::nothing) {
    expected.header.emplace();
    for (const at::Tensor& tensor : expected.like) expected.header->tensors.emplace_back(tensor);
    return;
  }
  receive_header(expected);
}

void Messages::receive(Expected& expected) {
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope(expected.rule);
  std::vector<TensorHeader> wanted;
  for (const at::Tensor& tensor : expected.like) wanted.emplace_back(tensor);
  const MessageHeader& header = *expected.header;
  int64_t moved = expected.moved;
  const bool pretends = group_.mover == Mover::nothing;
  int64_t elements = 0, bytes = 0, number = header.device_tensors_before;
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const TensorHeader& each = header.tensors[i];
    at::Tensor& tensor = expected.tensors.emplace_back();
    if (pretends) {
      tensor = pretended(expected.like[i]);
    } else if (each.defined) {
      tensor = place_of(each, expected.from);
      if (from_device(each)) {
        receive_from_device(as_bytes(tensor), expected.from, number++);
        moved += static_cast<int64_t>(sizeof(int64_t));
      } else if (each.has_bytes() && header.framed_bytes == 0) {
        move(as_bytes(tensor), expected.from, expected.tag);
      }
    }
    elements += each.numel();
    bytes += each.bytes();
    if (each.has_bytes() && !pretends) moved += each.bytes();
  }
  if (header.framed_bytes > 0) MessageFrame::unpack(header, expected.frame, expected.tensors);
  expected.frame.reset();
  if (group_.mover == Mover::gloo) coming_frames_.passed({expected.from, expected.tag}, header);
  group_.ledger->record("receive", elements, bytes, moved);
  if (wanted.empty()) return;
  // Everything has been taken: the next message is in its place also when this one is refused.
  const auto where =
      c10::str("receive over group ", group_.name, " from rank ", group_.ranks[expected.from],
               " with tag ", expected.tag, " on rank ", group_.ranks[group_.rank], ": ");
  OSLO_CHECK(wanted.size() == header.tensors.size(), where, header.tensors.size(),
             " tensors came, expected were ", wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const TensorHeader &came = header.tensors[i], &want = wanted[i];
    const bool same = came.defined == want.defined && came.sizes == want.sizes &&
                      (!came.defined || came.dtype == want.dtype);
    OSLO_CHECK(same, where, "tensor ", i, " is ", came.to_text(), ", expected was ",
               want.to_text());
  }
}

MessageFrames::Coming Messages::ask_for(MessageFrames::From from) {
  const int64_t bytes = MessageFrame::kHeaderBytes + coming_frames_.next(from);
  const auto words = bytes / static_cast<int64_t>(sizeof(int64_t));
  MessageFrames::Coming coming{at::empty({words}, at::kLong), nullptr};
  coming.work = start_to_receive(coming.place, from.first, from.second);
  return coming;
}

/// Which may have been asked for already.
MessageFrames::Coming Messages::frame_of(const Expected& expected) {
  const MessageFrames::From from{expected.from, expected.tag};
  if (group_.mover != Mover::gloo) return ask_for(from);
  const std::lock_guard<std::mutex> lock(asking_);
  if (expected.in_rounds) {
    for (const MessageFrames::From& each : coming_frames_.in_round(from)) {
      try {
        coming_frames_.asked_for(each, ask_for(each));
      } catch (const std::exception&) {
        // The group has failed, which those who wait for a message are told.
      }
    }
  }
  MessageFrames::Coming coming = coming_frames_.take(from);
  return coming.work ? coming : ask_for(from);
}

void Messages::receive_header(Expected& expected) {
  const MessageFrames::Coming coming = frame_of(expected);
  wait_for(*coming.work, receiving(coming.place, group_.ranks[expected.from], expected.tag),
           *group_.label);
  std::vector<int64_t> words = words_of(coming.place.narrow(0, 0, MessageHeader::kWords));
  const int64_t rest = MessageHeader::count_words(words) - MessageHeader::kWords;
  if (rest > 0) {
    at::Tensor more = at::empty({rest}, at::kLong);
    move(more, expected.from, expected.tag);
    const std::vector<int64_t> others = words_of(more);
    words.insert(words.end(), others.begin(), others.end());
  }
  expected.moved += static_cast<int64_t>(words.size() * sizeof(int64_t));
  expected.header = MessageHeader::from_words(words);
  const int64_t framed = expected.header->framed_bytes;
  OSLO_CHECK(framed == 0 || (framed == MessageFrame::bytes_of(*expected.header) &&
                             framed + MessageFrame::kHeaderBytes ==
                                 static_cast<int64_t>(coming.place.nbytes())),
             "a message's header is damaged: it has ", framed, " bytes behind it");
  if (framed > 0) expected.frame = coming.place;
}

/// Room for what is to come.
at::Tensor Messages::place_of(const TensorHeader& header, int from) const {
  OSLO_CHECK(header.device != c10::kCUDA || at::hasCUDA(), "receive over group ", group_.name,
             " from rank ", group_.ranks[from],
             ": it sends a CUDA tensor, and there is no CUDA device here; send ", "tensor.cpu()");
  return at::empty(header.sizes, at::TensorOptions(header.device).dtype(header.dtype));
}

void Messages::receive_from_device(const at::Tensor& bytes, int from, int64_t number) {
  UntaggedTensors* tensors = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tensors = &from_devices_[from];
  }
  tensors->take(bytes, number,
                {[&] {
                   const at::Tensor size = at::empty({1}, at::kLong);
                   move(size, from, kSizesTag);
                   return words_of(size)[0];
                 },
                 [&](const at::Tensor& into) { return start_to_receive(into, from, kDeviceTag); },
                 [&](c10d::Work& work) {
                   wait_for(work, receiving(bytes, group_.ranks[from], kDeviceTag), *group_.label);
                 }});
}

void Messages::move(const at::Tensor& bytes, int from, int tag) {
  const auto work = start_to_receive(bytes, from, tag);
  wait_for(*work, receiving(bytes, group_.ranks[from], tag), *group_.label);
}

}  // namespace oslo
