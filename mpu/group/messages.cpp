#include "mpu/group/messages.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <exception>
#include <limits>
#include <optional>

#include "mpu/base/error.h"
#include "mpu/base/parts.h"
#include "mpu/transport/counted_process_group.h"

namespace oslo {

/// One message that is to come, and what came.
struct PendingMessage::Expected {
  int from = 0;
  int tag = 0;
  const char* rule = "";
  std::vector<at::Tensor> like;
  std::shared_ptr<Messages::Queue> queue;
  std::optional<MessageHeader> header;  ///< once it has come
  int64_t moved = 0;
  bool done = false;
  bool taken = false;
  std::vector<at::Tensor> tensors;
  std::exception_ptr error;
};

namespace {

/// Its memory as bytes: what every transport moves.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return parts::as_real(tensor).reshape(-1).view(at::kByte);
}

bool moves(const TensorHeader& header) {
  return header.defined && header.device != c10::kMeta && header.numel() > 0;
}

bool from_device(const TensorHeader& header) {
  return moves(header) && header.device != c10::kCPU;
}

/// Says of every tensor on a device how many bytes it has, in the order in which they are sent.
constexpr int kSizesTag = std::numeric_limits<int>::max();
/// Of the tensors themselves: who carries them knows no other.
constexpr int kDeviceTag = 0;

at::Tensor words_tensor(const std::vector<int64_t>& words) {
  return at::tensor(c10::IntArrayRef(words), at::kLong);
}

std::vector<int64_t> words_of(const at::Tensor& tensor) {
  const auto* words = tensor.const_data_ptr<int64_t>();
  return {words, words + tensor.numel()};
}

/// What `start` starts. A group that has failed already says so here, others when they are waited
/// for: both under the operation's name.
template <typename Start>
c10::intrusive_ptr<c10d::Work> started(std::string_view operation, const OperationLabel& label,
                                       const Start& start) {
  try {
    return start();
  } catch (const std::exception& error) {
    fail_operation(operation, label, error);
  }
}

/// `from` in the world.
std::string receiving(const at::Tensor& bytes, int from, int tag) {
  if (!bytes.is_cpu()) return c10::str("receive from rank ", from, " on ", bytes.device());
  return c10::str("receive from rank ", from, " with tag ", tag);
}

/// What `like` says, where nothing comes.
at::Tensor pretended(const at::Tensor& like) {
  return like.defined() ? at::zeros(like.sizes(), like.options()) : at::Tensor();
}

}  // namespace

void PendingSend::wait() {
  const auto works = std::exchange(works_, {});
  for (const auto& work : works) wait_for(*work, "send", *label_);
  const auto sent = std::exchange(sent_, {});
  for (size_t i = 0; i < sent.size(); ++i) {
    OSLO_CHECK(sent[i].tensor._version() == sent[i].version, "send", label_->where, ": tensor ", i,
               " was written to while it was sent; send a copy, or wait first");
  }
}

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

void Messages::check(const char* operation, int peer, int tag) const {
  const auto size = static_cast<int>(group_.ranks.size());
  OSLO_CHECK(peer >= 0 && peer < size && peer != group_.rank, operation, " over group ",
             group_.name, ": number ", peer,
             peer == group_.rank ? " is this rank" : " is not in it", "; it has ", size,
             " ranks, give another one's number in the group");
  OSLO_CHECK(tag >= 0, operation, " over group ", group_.name, ": the tag ", tag, " is negative");
  OSLO_CHECK(tag < kSizesTag, operation, " over group ", group_.name, ": the tag ", tag,
             " is taken; give a smaller one");
}

/// Null where tensors on devices are carried as others are.
DeviceMessages* Messages::device_messages() const {
  auto* counted = dynamic_cast<CountedProcessGroup*>(group_.process_group.get());
  return counted == nullptr ? nullptr : counted->device_messages();
}

c10::intrusive_ptr<c10d::Work> Messages::start(const at::Tensor& bytes, int to, int tag) {
  return started("send", *group_.label, [&] {
    DeviceMessages* const apart = bytes.is_cpu() ? nullptr : device_messages();
    if (apart != nullptr) return apart->send(bytes, to);
    std::vector<at::Tensor> one{bytes};
    return group_.process_group->getBackend(bytes.device().type())->send(one, to, tag);
  });
}

c10::intrusive_ptr<c10d::Work> Messages::start_to_receive(const at::Tensor& bytes, int from,
                                                          int tag) {
  return started(receiving(bytes, group_.ranks[from], tag), *group_.label, [&] {
    DeviceMessages* const apart = bytes.is_cpu() ? nullptr : device_messages();
    if (apart != nullptr) return apart->receive(bytes, from);
    std::vector<at::Tensor> one{bytes};
    return group_.process_group->getBackend(bytes.device().type())->recv(one, from, tag);
  });
}

void Messages::send(c10::ArrayRef<at::Tensor> tensors, int to, int tag) {
  const c10::AutoGradMode no_grad(false);
  check("send", to, tag);
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    const TensorHeader header(tensor);  // refuses what does not travel before it is copied
    const bool copied = moves(header) && group_.mover != Mover::nothing;
    copies.push_back(copied ? tensor.clone(at::MemoryFormat::Contiguous) : tensor);
  }
  start_send(std::move(copies), to, tag);
}

PendingSend Messages::start_send(std::vector<at::Tensor> tensors, int to, int tag) {
  check("send", to, tag);
  const c10::AutoGradMode no_grad(false);
  MessageHeader header;
  for (const at::Tensor& tensor : tensors) header.tensors.emplace_back(tensor);
  group_.ledger->record("send", 0, 0, 0);
  PendingSend pending;
  pending.label_ = group_.label;
  if (group_.mover == Mover::nothing) return pending;
  std::vector<at::Tensor> payloads;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!moves(header.tensors[i])) continue;
    payloads.push_back(as_bytes(parts::plain(tensors[i])));
    if (!tensors[i].is_inference()) pending.sent_.push_back({tensors[i], tensors[i]._version()});
  }
  // A message's pieces follow each other, whichever threads send.
  const std::lock_guard<std::mutex> lock(sending_);
  int64_t& before = device_tensors_sent_[to];
  header.device_tensors_before = before;
  const at::Tensor words = words_tensor(header.words());
  const auto send = [&](const at::Tensor& bytes, int as) {
    pending.works_.push_back(start(bytes, to, as));
  };
  // Before the header, which has somebody take them.
  for (const at::Tensor& bytes : payloads) {
    if (bytes.is_cpu()) continue;
    send(words_tensor({bytes.numel()}), kSizesTag);
    ++before;
  }
  const int64_t first = MessageHeader::kWords;
  send(words.narrow(0, 0, first), tag);
  if (words.numel() > first) send(words.narrow(0, first, words.numel() - first), tag);
  for (const at::Tensor& bytes : payloads) send(bytes, bytes.is_cpu() ? tag : kDeviceTag);
  return pending;
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
  expected.header = receive_header(expected.from, expected.tag, expected.moved);
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
      } else if (moves(each)) {
        move(as_bytes(tensor), expected.from, expected.tag);
      }
    }
    const auto size = each.numel() * static_cast<int64_t>(c10::elementSize(each.dtype));
    elements += each.numel();
    bytes += size;
    if (moves(each) && !pretends) moved += size;
  }
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

MessageHeader Messages::receive_header(int from, int tag, int64_t& moved) {
  at::Tensor block = at::empty({MessageHeader::kWords}, at::kLong);
  move(block, from, tag);
  std::vector<int64_t> words = words_of(block);
  const int64_t rest = MessageHeader::count_words(words) - MessageHeader::kWords;
  if (rest > 0) {
    at::Tensor more = at::empty({rest}, at::kLong);
    move(more, from, tag);
    const std::vector<int64_t> others = words_of(more);
    words.insert(words.end(), others.begin(), others.end());
  }
  moved += static_cast<int64_t>(words.size() * sizeof(int64_t));
  return MessageHeader::from_words(words);
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
