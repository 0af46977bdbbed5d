#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/pipeline/crossing/forward_order.h"
#include "parallelizers/pipeline/crossing/forward_writes.h"
#include "parallelizers/pipeline/run/stray_gradients.h"
#include "parallelizers/pipeline/schedule/timeline/recorder.h"
#include "parallelizers/placement/carrier/split_backward.h"
#include "parallelizers/placement/residency/stage_carrier.h"
#include "parallelizers/placement/residency/stage_ranks.h"

namespace oslo {

/// What crosses between pipeline stages for one micro-batch: values forward, their gradients
/// backward. A schedule makes one for each micro-batch, calls the model's forward while it is the
/// thread's carrier, and calls `backward` when it is that micro-batch's turn; in between it keeps
/// what this rank's backward needs. Sends never wait for the other side, so that stages may be in
/// any order that gives each of them what it needs (GPipe, 1F1B; Narayanan et al. 2021).
///
/// Each of a rank's stages has its own part of the graph, and so a backward of its own. What goes
/// from one to another on one rank is no message: the later stage gets a leaf on the same memory.
class MicroBatch final : public StageCarrier, public UseFollower, public ReadSharer {
 public:
  /// `stages`: the ranks that have this one's place along the pipeline, by pipeline rank. `number`
  /// tells apart the micro-batches that are under way at a time, `of` as many. Messages have
  /// numbers of 31 bits: in all of them 2^30 values may cross. `stands_at_reads`: see ForwardOrder.
  /// What it sends and receives is noted where `recorder` is not null.
  MicroBatch(std::shared_ptr<Group> stages, StageRanks ranks, int number, int of,
             bool stands_at_reads = true, pipeline::Recorder* recorder = nullptr);

  /// From then on the forward, where it comes to one of this rank's stages that is not open yet,
  /// calls `pause` until it is.
  void pause_by(std::function<void()> pause);
  /// Opens this rank's stages up to this one, or all, and the way to the forward's end.
  void open(int stage) { opened_ = stage; }
  void open_all() { opened_ = StageSet::kMost; }

  /// From then on what the forward records is for backward passes in two halves.
  void split_backward() { splits_ = true; }
  void enter(StageSet stages) override;

  /// From then on this rank uses what forwards write in the order of the micro-batches. Both are a
  /// step's.
  void keep_order(const ForwardWrites& writes, UseOrder& uses);
  /// From then on it tells of each parameter that the forward uses. A step's.
  void tell(StrayGradients* strays) { strays_ = strays; }
  void use(const at::Tensor& parameter, StageSet held, bool writes) override;
  void used(const at::Tensor& parameter, StageSet held, bool writes) override;
  UseFollower* follower() override {
    return uses_ != nullptr || strays_ != nullptr ? this : nullptr;
  }

  /// One message from a rank that holds the value to that of stage `to`, unless it is the same;
  /// none for the other ranks.
  at::Tensor carry(const at::Tensor& tensor, const Value& value, int to) override;

  at::Tensor hand_over(const at::Tensor& tensor, const Value& value, StageSet stages) override;

  /// One message from the first owner to each rank of its place that did not read.
  std::vector<c10::IValue> share_read(StageSet owners, std::vector<c10::IValue> results) override;
  ReadSharer* reads() override { return this; }

  /// Likewise, of the generator's state.
  void share_generator(StageSet owners, const at::Generator& generator) override;

  /// The forward has returned, or thrown: what only that needs is let go. On the forward's thread.
  void end_forward();

  /// One stage's part of the backward pass: receives the gradients of what it sent, runs autograd
  /// from there and from `loss` (the local one; undefined on stages that have none) into its
  /// parameters, and sends the gradients of what it received. Called once for each stage of this
  /// rank, the highest first.
  void backward(int stage, const at::Tensor& loss = {});
  /// With `split_backward`: what `backward` left of that stage, the gradients of its parameters.
  void backward_of_weights(int stage);

  /// A digest of which parameters the forward used, where it is one of several under way: the same
  /// on all ranks if their forwards took one way.
  int64_t way() const { return static_cast<int64_t>(way_); }

  // Messages of the forward pass, of this rank.
  int64_t sent() const { return messages_sent_; }
  int64_t received() const { return messages_received_; }

 private:
  /// A value that left a stage's part of the graph, by a message or to another stage of this rank.
  struct Sent {
    int stage;                   ///< whose backward goes on from it
    torch::autograd::Edge edge;  ///< its place in the graph then: it may be written since
    at::Tensor leaf;             ///< what another stage of this rank works on; undefined: a message
    std::vector<int64_t> sizes;
    at::TensorOptions options;
    int to_rank;
    int tag;
  };
  struct Received {
    int stage;
    at::Tensor leaf;
    int from_rank;
    int tag;
  };
  /// Where a tensor was carried, as it was then.
  struct Carried {
    at::Tensor tensor, there;
    uint64_t version = 0;
  };

  int new_tag();
  void check_own(const at::Tensor& local, int to) const;
  void wait_for(int stage);
  at::Tensor linked(const Value& value);

  std::shared_ptr<Group> stages_;
  const StageRanks ranks_;
  ForwardOrder order_;
  const int number_, of_;
  const ForwardWrites* writes_ = nullptr;
  UseOrder* uses_ = nullptr;
  StrayGradients* strays_ = nullptr;
  std::function<void()> pause_;
  int opened_;
  bool splits_ = false;
  int entered_ = -1;  ///< the stage that the thread's scope is of
  std::optional<SplitBackward::Scope> scope_;
  std::map<int, std::shared_ptr<SplitBackward>> weights_;  ///< by stage
  int next_tag_;
  pipeline::Recorder* recorder_;
  std::map<std::pair<const c10::TensorImpl*, int>, Carried> carried_;
  std::set<const c10::TensorImpl*> met_;  ///< parameters that the forward used
  uint64_t way_ = 0;
  std::vector<Sent> sent_;
  std::vector<Received> received_;
  int64_t messages_sent_ = 0, messages_received_ = 0;
};

}  // namespace oslo
