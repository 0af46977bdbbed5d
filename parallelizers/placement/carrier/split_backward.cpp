#include "parallelizers/placement/carrier/split_backward.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "mpu/base/error.h"

namespace oslo {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

thread_local std::shared_ptr<SplitBackward> innermost;

/// Where the weight half begins. The nodes behind it have their gradients already.
class WeightHalfRoot final : public Node {
 public:
  using Node::Node;
  std::string name() const override { return "OsloWeightHalf"; }
  variable_list apply(variable_list&&) override { return variable_list(num_outputs()); }
};

/// What an accumulator may keep as the gradient, and write to later. Two halves may hold views of
/// one tensor (of what went through cat and add, say), which the passes that handed it to both have
/// let go of: neither then looks shared to LibTorch.
at::Tensor owned(at::Tensor gradient) {
  const bool shared = gradient.has_storage() && gradient.storage().use_count() > 1;
  return shared ? gradient.clone() : gradient;
}

}  // namespace

SplitBackward::Scope::Scope(std::shared_ptr<SplitBackward> split)
    : previous_(std::exchange(innermost, std::move(split))) {}

SplitBackward::Scope::~Scope() {
  innermost = std::move(previous_);
}

const std::shared_ptr<SplitBackward>& SplitBackward::current() {
  return innermost;
}

void SplitBackward::run() {
  torch::autograd::edge_list nodes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [weak, edges] : held_) {
      const auto node = weak.lock();
      if (!node) continue;
      // The node's place in the graph (its topological number) is as if they had always been there.
      node->next_edges() = std::move(edges);
      node->held_ = false;
    }
    held_.clear();
    for (auto& node : left_) nodes.emplace_back(std::move(node), 0);
    left_.clear();
  }
  if (nodes.empty()) return;
  const auto root = make_node<WeightHalfRoot>(std::move(nodes));
  const at::Tensor start = at::empty({0});
  root->add_input_metadata(start);
  torch::autograd::Engine::get_default_engine().execute({Edge(root, 0)}, {start},
                                                        /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

size_t SplitBackward::left() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return left_.size();
}

void SplitBackward::hold(const NodeHandle<WeightHalfNode>& node) {
  const std::lock_guard<std::mutex> lock(mutex_);
  held_.emplace_back(WeakNodeHandle<WeightHalfNode>(node), std::move(node->next_edges()));
  node->next_edges().clear();
}

void SplitBackward::leave(NodeHandle<WeightHalfNode> node) {
  const std::lock_guard<std::mutex> lock(mutex_);
  left_.push_back(std::move(node));
}

void WeightHalfNode::belong_to(const std::shared_ptr<SplitBackward>& split) {
  split_ = split;
  held_ = true;
  split->hold(node_cast<WeightHalfNode>(NodePtr(getptr())));
}

variable_list WeightHalfNode::apply(variable_list&& gradients) {
  at::Tensor gradient = std::move(gradients[0]);
  if (held_) {
    if (!gradient.defined()) return {};
    OSLO_CHECK(!c10::GradMode::is_enabled(),
               "a backward pass in two halves records no gradient of its gradients (create_graph); "
               "use a schedule whose backward is one, such as 1f1b");
    OSLO_CHECK(!torch::autograd::get_current_graph_task_keep_graph(),
               "a backward pass in two halves goes over its graph once (retain_graph); use a "
               "schedule whose backward is one, such as 1f1b");
    const auto split = split_.lock();
    OSLO_CHECK(split,
               "the SplitBackward that the weight half of this backward pass belongs to is "
               "gone; keep it until its run()");
    if (gradient_.defined()) {
      gradient_ = gradient_ + gradient;
      return {};
    }
    gradient_ = std::move(gradient);
    keep_for_later();
    split->leave(node_cast<WeightHalfNode>(NodePtr(getptr())));
    return {};
  }
  if (gradient_.defined()) {
    at::Tensor kept = std::move(gradient_);
    gradient_.reset();
    gradient = gradient.defined() ? kept + gradient : owned(std::move(kept));
  }
  if (!gradient.defined()) return variable_list(num_outputs());
  return backward(std::move(gradient));
}

void WeightHalfNode::release_variables() {
  if (!held_) release();
}

}  // namespace oslo
