#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "mpu/group/message_header.h"

namespace oslo {

// Over Gloo each piece of a message waits for the other rank to ask for it: the header does, and
// then what it brings. The message of one sender and tag is mostly as large as the one before, in a
// pipeline always: so the two travel together, in one frame, as soon as both ranks know how large
// that is. A message of another size goes in pieces, its header alone as a shorter frame.

/// The header's block, and the tensors one behind the other: a tensor of words.
struct MessageFrame {
  /// From here on what copying takes is more than what it saves.
  static constexpr int64_t kMostBytes = int64_t{4} << 20;
  static constexpr int64_t kHeaderBytes = MessageHeader::kWords * 8;

  /// How many bytes a message's tensors have in a frame; 0 where they do not travel in one.
  static int64_t bytes_of(const MessageHeader& header);
  static at::Tensor pack(const MessageHeader& header, c10::ArrayRef<at::Tensor> tensors);
  /// Copies the tensors of a frame into `places`, one for each in the header.
  static void unpack(const MessageHeader& header, const at::Tensor& frame,
                     const std::vector<at::Tensor>& places);
};

/// How large the next frames are, by rank and tag: on either side as the message before. Of those
/// that come also which ones this rank asks for before it wants them, so that they wait for nobody.
///
/// Only what is used in rounds is asked for early: each rank and tag once in a step. A round begins
/// when one comes again, and then all are asked for. To ask again as soon as one has come would
/// write to a rank that may have left with its last round, which breaks a connection on which
/// others of that round still lie.
///
/// Any thread may call it.
class MessageFrames {
 public:
  using From = std::pair<int, int>;  ///< a rank and a tag

  /// What is to come, and room for it; without a work nobody has asked for it.
  struct Coming {
    at::Tensor place;
    c10::intrusive_ptr<c10d::Work> work;
  };

  /// How many bytes the frame of the next message has behind the header.
  int64_t next(From from) const;
  /// The message there had this header.
  void passed(From from, const MessageHeader& header);

  /// One of a round is about to be received. Those that are to be asked for, where it begins one.
  std::vector<From> in_round(From from);
  void asked_for(From from, Coming coming);
  /// What was asked for. Until the message there has `passed` nobody asks for another one.
  Coming take(From from);

 private:
  /// Higher tags are not remembered: a program may count them up for ever.
  static constexpr int kTags = 1 << 16;
  /// Room that waits for frames.
  static constexpr int64_t kMostWaiting = int64_t{64} << 20;

  struct Round {
    bool received = false;  ///< in this one
  };

  mutable std::mutex mutex_;
  std::map<From, int64_t> next_;
  std::map<From, Round> rounds_;
  std::map<From, Coming> coming_;
  std::set<From> under_way_;
  int64_t waiting_ = 0;  ///< bytes of room
};

}  // namespace oslo
