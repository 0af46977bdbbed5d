#pragma once

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

#include "mpu/base/node_ptr.h"
#include "mpu/group/group.h"

/// How the differentiable collectives stand in autograd's graph.
namespace oslo::collective_node {

using torch::autograd::Node;
using torch::autograd::variable_list;
using GroupPtr = std::shared_ptr<Group>;

inline bool records(const at::Tensor& tensor) {
  return c10::GradMode::is_enabled() && tensor.requires_grad();
}

/// A collective in the graph. Its backward is made of collectives, so that it is differentiable in
/// turn (create_graph).
class CollectiveNode : public Node {
 public:
  explicit CollectiveNode(GroupPtr group)
      : group_(std::move(group)), asker_(AskerScope::current()) {}
  CollectiveNode(GroupPtr group, uint64_t sequence_nr)
      : Node(sequence_nr), group_(std::move(group)), asker_(AskerScope::current()) {}

  variable_list apply(variable_list&& gradients) final {
    if (!gradients[0].defined()) return {at::Tensor()};
    const AskerScope scope(asker_);
    const AskerScope of_gradient = AskerScope::of_gradient();
    return {backward(std::move(gradients[0]))};
  }

  virtual at::Tensor backward(at::Tensor gradient) = 0;

#if OSLO_NODES_COUNT_THEMSELVES
  /// The group remembers nodes by weak handles (shared_nodes.h): it would keep itself.
  void release_resources() override {
    group_.reset();
    Node::release_resources();
  }
#endif

 protected:
  GroupPtr group_;

 private:
  const Asker asker_;
};

/// Makes `output` the result of `node` on `input`.
inline at::Tensor record(at::Tensor output, const at::Tensor& input, const NodePtr& node) {
  node->add_next_edge(torch::autograd::impl::gradient_edge(input));
  torch::autograd::set_history(output, node);
  return output;
}

}  // namespace oslo::collective_node
