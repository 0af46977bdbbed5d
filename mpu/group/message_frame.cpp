#include "mpu/group/message_frame.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "mpu/base/parts.h"

namespace oslo {
namespace {

/// Where every tensor begins.
int64_t rounded(int64_t bytes) {
  constexpr int64_t kBoundary = 64;
  return (bytes + kBoundary - 1) / kBoundary * kBoundary;
}

}  // namespace

int64_t MessageFrame::bytes_of(const MessageHeader& header) {
  int64_t bytes = 0;
  for (const TensorHeader& each : header.tensors) {
    if (!each.has_bytes()) continue;
    if (each.device != c10::kCPU || each.bytes() > kMostBytes) return 0;
    bytes += rounded(each.bytes());
  }
  const bool fits = bytes <= kMostBytes && header.words().size() == MessageHeader::kWords;
  return fits ? bytes : 0;
}

at::Tensor MessageFrame::pack(const MessageHeader& header, c10::ArrayRef<at::Tensor> tensors) {
  const int64_t bytes = kHeaderBytes + header.framed_bytes;
  at::Tensor frame = at::empty({bytes / static_cast<int64_t>(sizeof(int64_t))}, at::kLong);
  auto* to = static_cast<char*>(frame.mutable_data_ptr());
  const std::vector<int64_t> words = header.words();
  std::memcpy(to, words.data(), kHeaderBytes);
  to += kHeaderBytes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorHeader& each = header.tensors[i];
    if (!each.has_bytes()) continue;
    const at::Tensor dense = parts::as_real(parts::plain(tensors[i]));
    std::memcpy(to, dense.const_data_ptr(), each.bytes());
    to += rounded(each.bytes());
  }
  return frame;
}

void MessageFrame::unpack(const MessageHeader& header, const at::Tensor& frame,
                          const std::vector<at::Tensor>& places) {
  const char* from = static_cast<const char*>(frame.const_data_ptr()) + kHeaderBytes;
  for (size_t i = 0; i < places.size(); ++i) {
    const TensorHeader& each = header.tensors[i];
    if (!each.has_bytes()) continue;
    std::memcpy(places[i].mutable_data_ptr(), from, each.bytes());
    from += rounded(each.bytes());
  }
}

int64_t MessageFrames::next(From from) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = next_.find(from);
  return found == next_.end() ? 0 : found->second;
}

void MessageFrames::passed(From from, const MessageHeader& header) {
  const int64_t bytes = MessageFrame::bytes_of(header);
  const std::lock_guard<std::mutex> lock(mutex_);
  under_way_.erase(from);
  if (from.second < kTags) next_[from] = bytes;
}

std::vector<MessageFrames::From> MessageFrames::in_round(From from) {
  if (from.second >= kTags) return {};
  std::vector<From> early;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (rounds_[from].received) {
    int64_t room = kMostWaiting - waiting_;
    for (auto& [each, round] : rounds_) {
      round.received = false;
      if (coming_.count(each) > 0 || under_way_.count(each) > 0) continue;
      room -= MessageFrame::kHeaderBytes + next_[each];
      if (room >= 0) early.push_back(each);
    }
  }
  rounds_[from].received = true;
  return early;
}

void MessageFrames::asked_for(From from, Coming coming) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_ += static_cast<int64_t>(coming.place.nbytes());
  coming_[from] = std::move(coming);
}

MessageFrames::Coming MessageFrames::take(From from) {
  const std::lock_guard<std::mutex> lock(mutex_);
  under_way_.insert(from);
  const auto found = coming_.find(from);
  if (found == coming_.end()) return {};
  Coming coming = std::move(found->second);
  coming_.erase(found);
  waiting_ -= static_cast<int64_t>(coming.place.nbytes());
  return coming;
}

}  // namespace oslo
