#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "mpu/collectives/collective_node.h"
#include "mpu/group/place_behind.h"
#include "mpu/transport/presence/pending.h"

/// Backward passes in which a collective is started by one node and waited for by another.
namespace oslo::collective_node {

/// Collectives that are under way between two nodes of the graph, one for each pass that is.
class UnderWay {
 public:
  void push(Pending pending);
  Pending pop();

 private:
  std::mutex mutex_;
  std::vector<std::pair<int, Pending>> pending_;  ///< by graph task
};

/// Holds the place of a gradient that is to come: its shape without its memory.
at::Tensor place_of_gradient(const at::TensorOptions& options, c10::SymIntArrayRef sizes);

/// Waits for what another node started.
class WaitingBackward final : public CollectiveNode {
 public:
  WaitingBackward(GroupPtr group, std::shared_ptr<UnderWay> under_way)
      : CollectiveNode(std::move(group)), under_way_(std::move(under_way)) {}
  WaitingBackward(GroupPtr group, std::shared_ptr<UnderWay> under_way, uint64_t sequence_nr)
      : CollectiveNode(std::move(group), sequence_nr), under_way_(std::move(under_way)) {}
  std::string name() const override { return "OsloStartedBackward"; }
  at::Tensor backward(at::Tensor) override { return under_way_->pop().wait(); }

 private:
  std::shared_ptr<UnderWay> under_way_;
};

/// A node whose collective can be divided after it was made: it then starts the collective, and a
/// node behind it waits. All consumers of its result have handed in their gradients by then, so
/// that one collective serves them, divided or not.
class DividableNode : public CollectiveNode, public PlaceBehind {
 public:
  explicit DividableNode(GroupPtr group);

  const Group& group() const { return *group_; }

  /// The sequence number of nodes that the engine runs between start and wait, as it takes the
  /// latest of what is ready. The same when it is divided already.
  uint64_t divide();

  /// Behind the node that waits, where there is one.
  const torch::autograd::Edge& behind() const final;

  at::Tensor backward(at::Tensor gradient) final;

 protected:
  virtual Pending start(at::Tensor gradient) = 0;
  virtual at::Tensor call(at::Tensor gradient) = 0;

 private:
  std::shared_ptr<UnderWay> under_way_;  ///< null: one call
};

}  // namespace oslo::collective_node
