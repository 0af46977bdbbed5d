#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "mpu/base/ledger.h"
#include "mpu/group/message_frame.h"
#include "mpu/group/message_header.h"
#include "mpu/group/untagged_tensors.h"
#include "mpu/transport/mover.h"
#include "mpu/transport/presence/pending.h"

namespace oslo {

class DeviceMessages;
class Messages;

/// A message that has been started. Dropping the handle does not stop it.
class PendingSend {
 public:
  /// Returns when the tensors may be written to again. Throws what went wrong, also when one of
  /// them was written to before.
  void wait();

 private:
  friend class Messages;
  struct Sent {
    at::Tensor tensor;
    int64_t version;
  };
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  std::vector<Sent> sent_;
  Pending::Label label_;
};

/// A message that is to come. It has its place in the order of messages from the start; what it
/// brings is moved while somebody waits for it, or for one behind it.
class PendingMessage {
 public:
  /// The tensors. Throws when they cannot come any more, or are other ones than `like`. Once only.
  std::vector<at::Tensor> wait();
  /// Returns when the message has begun to come, or cannot come any more: `wait` then only moves
  /// it, or throws. For those who tell waiting from communicating.
  void await_arrival();
  /// Says that the sender and tag are used in rounds, once in each (a step of a pipeline): what is
  /// used so is asked for when a round begins, and comes before this rank waits for it.
  void in_rounds();

 private:
  friend class Messages;
  struct Expected;
  std::shared_ptr<Messages> messages_;
  std::shared_ptr<Expected> expected_;
};

/// The group whose messages these are.
struct MessageGroup {
  std::string name;
  std::vector<int> ranks;
  int rank;
  Mover mover;  ///< of CPU tensors
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  std::shared_ptr<Ledger> ledger;
  Pending::Label label;
};

/// Messages between two ranks of a group (group ranks): lists of tensors, of which shape, dtype,
/// kind of device and being undefined travel with them. Zero elements, no dimensions, gaps and any
/// dtype are fine; history does not travel (no gradient flows through it).
///
/// Sends never wait for their receiver (MPI's buffered and non-blocking sends), so that ranks may
/// send to each other in any order: with sends that wait, 1F1B's schedule deadlocks. Messages of
/// one sender and `tag` come in the order in which they were sent; tags keep apart what is received
/// in another order. Tensors on devices come in one order, whatever their tags (NCCL has none): a
/// receiver keeps those that come before the one it wants (untagged_tensors.h). Over Gloo a message
/// may be one piece with its header (message_frame.h).
///
/// A rank that has died, or sends nothing within the group's time limit, is named in an `Error`.
/// Any thread may call this; a message's tensors belong together.
class Messages : public std::enable_shared_from_this<Messages> {
 public:
  explicit Messages(MessageGroup group) : group_(std::move(group)) {}

  /// The tensors may be written to at once: they are copied.
  void send(c10::ArrayRef<at::Tensor> tensors, int to, int tag);

  /// The tensors must not be written to before `wait` has returned; it checks that.
  PendingSend start_send(std::vector<at::Tensor> tensors, int to, int tag);

  /// `like`, unless it is empty, says what is expected: what comes must have these shapes and
  /// dtypes. A fake group, where nothing comes, gives zeros of them.
  PendingMessage start_receive(int from, int tag, c10::ArrayRef<at::Tensor> like);

 private:
  friend class PendingMessage;
  using Expected = PendingMessage::Expected;

  /// What is to come from one rank with one tag, in order. Gone when nothing is.
  struct Queue {
    std::mutex turn;  ///< whoever receives from it
    std::deque<std::shared_ptr<Expected>> expected;
  };

  void check(const char* operation, int peer, int tag) const;
  void receive_until(Expected& expected, bool only_arrival);
  void receive_header_of(Expected& expected);
  void receive(Expected& expected);
  void receive_header(Expected& expected);
  MessageFrames::Coming ask_for(MessageFrames::From from);
  MessageFrames::Coming frame_of(const Expected& expected);
  bool frames(const MessageHeader& header, int to, int tag) const;
  c10::intrusive_ptr<c10d::Work> send_frame(MessageHeader header, c10::ArrayRef<at::Tensor> tensors,
                                            int to, int tag);
  at::Tensor place_of(const TensorHeader& header, int from) const;
  void receive_from_device(const at::Tensor& bytes, int from, int64_t number);
  void move(const at::Tensor& bytes, int from, int tag);
  c10::intrusive_ptr<c10d::Work> start(const at::Tensor& bytes, int to, int tag);
  c10::intrusive_ptr<c10d::Work> start_to_receive(const at::Tensor& bytes, int from, int tag);
  DeviceMessages* device_messages() const;

  const MessageGroup group_;
  std::mutex sending_;                          ///< whoever sends
  std::map<int, int64_t> device_tensors_sent_;  ///< by receiver
  std::mutex mutex_;                            ///< of what follows, and of what queues hold
  std::map<std::pair<int, int>, std::shared_ptr<Queue>> queues_;  ///< by sender and tag
  std::map<int, UntaggedTensors> from_devices_;                   ///< by sender
  MessageFrames sent_frames_, coming_frames_;
  std::mutex asking_;  ///< whoever asks for frames: they come in the order in which they were
};

}  // namespace oslo
