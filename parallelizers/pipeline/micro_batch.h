#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "mpu/group.h"
#include "parallelizers/pipeline/schedule/recorder.h"
#include "parallelizers/placement/engine/stage_carrier.h"

namespace oslo {

/// What crosses between pipeline stages for one micro-batch: values forward, their gradients
/// backward. A schedule makes one for each micro-batch, calls the model's forward while it is the
/// thread's carrier, and calls `backward` when it is that micro-batch's turn; in between it keeps
/// what this stage's backward needs. Sends never wait for the other side, so that stages may be in
/// any order that gives each of them what it needs (GPipe, 1F1B; Narayanan et al. 2021).
class MicroBatch final : public StageCarrier {
 public:
  /// `stages`: the ranks that have this one's place on the other stages, by stage. `number` tells
  /// apart the micro-batches that are under way at a time; at most 1000 values may cross in each.
  /// What it sends and receives is noted where `recorder` is not null.
  MicroBatch(std::shared_ptr<Group> stages, int number, pipeline::Recorder* recorder = nullptr);

  /// One message from the stage that holds the value to stage `to`; none for the other ranks.
  at::Tensor carry(const at::Tensor& tensor, const Value& value, int to) override;

  /// One message from the first owner to each rank of its place that did not read.
  std::vector<c10::IValue> share_read(StageSet owners, std::vector<c10::IValue> results) override;
  bool shares_reads() const override { return true; }

  /// This stage's part of the backward pass: receives the gradients of what it sent, runs autograd
  /// from there and from `loss` (the local one; undefined on stages that have none) into its
  /// parameters, and sends the gradients of what it received. Called once, on every stage.
  void backward(const at::Tensor& loss = {});

  // Messages of the forward pass, of this rank.
  int64_t sent() const { return static_cast<int64_t>(sent_.size()); }
  int64_t received() const { return static_cast<int64_t>(received_.size()); }

 private:
  struct Sent {
    torch::autograd::Edge edge;  ///< its place in the graph then: it may be written since
    std::vector<int64_t> sizes;
    at::TensorOptions options;
    int to;
    int tag;
  };
  struct Received {
    at::Tensor leaf;
    int from;
    int tag;
  };
  /// Where a tensor was carried, as it was then.
  struct Carried {
    at::Tensor tensor, there;
    uint64_t version = 0;
  };

  int new_tag();

  std::shared_ptr<Group> stages_;
  int next_tag_;
  pipeline::Recorder* recorder_;
  std::map<std::pair<const c10::TensorImpl*, int>, Carried> carried_;
  std::vector<Sent> sent_;
  std::vector<Received> received_;
};

}  // namespace oslo
