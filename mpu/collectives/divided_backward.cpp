#include "mpu/collectives/divided_backward.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "mpu/base/error.h"

namespace oslo::collective_node {
namespace {

/// Three in a row, of which the node gets the last: those before it are for the node that waits,
/// and for what runs in between.
uint64_t third_sequence_number() {
  at::sequence_number::get_and_increment();
  at::sequence_number::get_and_increment();
  return at::sequence_number::get_and_increment();
}

}  // namespace

void UnderWay::push(Pending pending) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.emplace_back(torch::autograd::get_current_graph_task_id(), std::move(pending));
}

Pending UnderWay::pop() {
  const int task = torch::autograd::get_current_graph_task_id();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto own = std::ranges::find(pending_, task, [](const auto& entry) { return entry.first; });
  OSLO_CHECK(own != pending_.end(), "a backward pass waits for a collective that it did not start");
  Pending found = std::move(own->second);
  pending_.erase(own);
  return found;
}

at::Tensor place_of_gradient(const at::TensorOptions& options, c10::SymIntArrayRef sizes) {
  return at::zeros({}, options).expand_symint(sizes);
}

DividableNode::DividableNode(GroupPtr group)
    : CollectiveNode(std::move(group), third_sequence_number()) {}

uint64_t DividableNode::divide() {
  const uint64_t between = sequence_nr() - 1;
  if (under_way_) return between;
  under_way_ = std::make_shared<UnderWay>();
  const auto waits = make_node<WaitingBackward>(group_, under_way_, between - 1);
  torch::autograd::Edge& behind = next_edges()[0];
  const auto& gradient = behind.function->input_metadata(behind.input_nr);
  waits->add_input_metadata(gradient.options(), gradient.shape_as_dim_vector(),
                            /*is_tensor_subclass=*/false, /*is_nested=*/false,
                            gradient.grad_dtype());
  waits->add_next_edge(behind);
  // Of the two nodes this one is farther from the leaves.
  behind = {waits, 0};
  return between;
}

const torch::autograd::Edge& DividableNode::behind() const {
  const torch::autograd::Edge& next = next_edge(0);
  return under_way_ ? next.function->next_edge(0) : next;
}

at::Tensor DividableNode::backward(at::Tensor gradient) {
  if (!under_way_) return call(std::move(gradient));
  const auto& place = next_edge(0).function->input_metadata(0);
  at::Tensor held = place_of_gradient(gradient.options(), place.shape_as_dim_vector());
  // A gradient of the gradient is asked for: the call records what it does.
  under_way_->push(records(gradient) ? Pending(call(std::move(gradient)))
                                     : start(std::move(gradient)));
  return held;
}

}  // namespace oslo::collective_node
