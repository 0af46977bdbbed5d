#include "mpu/group/messages.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/parts.h"
#include "mpu/group/message_pieces.h"
#include "mpu/transport/counted_process_group.h"

namespace oslo {

using namespace pieces;

namespace {

MessageHeader header_of(c10::ArrayRef<at::Tensor> tensors) {
  MessageHeader header;
  for (const at::Tensor& tensor : tensors) header.tensors.emplace_back(tensor);
  return header;
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

/// Whether the message is as large as the one before it.
bool Messages::frames(const MessageHeader& header, int to, int tag) const {
  const int64_t bytes = group_.mover == Mover::gloo ? sent_frames_.next({to, tag}) : 0;
  return bytes > 0 && bytes == MessageFrame::bytes_of(header);
}

c10::intrusive_ptr<c10d::Work> Messages::send_frame(MessageHeader header,
                                                    c10::ArrayRef<at::Tensor> tensors, int to,
                                                    int tag) {
  header.device_tensors_before = device_tensors_sent_[to];
  header.framed_bytes = MessageFrame::bytes_of(header);
  return start(MessageFrame::pack(header, tensors), to, tag);
}

void Messages::send(c10::ArrayRef<at::Tensor> tensors, int to, int tag) {
  const c10::AutoGradMode no_grad(false);
  check("send", to, tag);
  const MessageHeader header = header_of(tensors);  // refuses what does not travel
  {
    const std::lock_guard<std::mutex> lock(sending_);
    if (frames(header, to, tag)) {
      group_.ledger->record("send", 0, 0, 0);
      send_frame(header, tensors, to, tag);
      return;
    }
  }
  std::vector<at::Tensor> copies;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool copied = header.tensors[i].has_bytes() && group_.mover != Mover::nothing;
    copies.push_back(copied ? tensors[i].clone(at::MemoryFormat::Contiguous) : tensors[i]);
  }
  start_send(std::move(copies), to, tag);
}

PendingSend Messages::start_send(std::vector<at::Tensor> tensors, int to, int tag) {
  check("send", to, tag);
  const c10::AutoGradMode no_grad(false);
  MessageHeader header = header_of(tensors);
  group_.ledger->record("send", 0, 0, 0);
  PendingSend pending;
  pending.label_ = group_.label;
  if (group_.mover == Mover::nothing) return pending;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool watched = header.tensors[i].has_bytes() && !tensors[i].is_inference();
    if (watched) pending.sent_.push_back({tensors[i], tensors[i]._version()});
  }
  // A message's pieces follow each other, whichever threads send.
  const std::lock_guard<std::mutex> lock(sending_);
  if (frames(header, to, tag)) {
    pending.works_.push_back(send_frame(std::move(header), tensors, to, tag));
    return pending;
  }
  std::vector<at::Tensor> payloads;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (header.tensors[i].has_bytes()) payloads.push_back(as_bytes(parts::plain(tensors[i])));
  }
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
  if (group_.mover == Mover::gloo) sent_frames_.passed({to, tag}, header);
  return pending;
}

}  // namespace oslo
