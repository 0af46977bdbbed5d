#pragma once

#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <utility>

// LibTorch counts a node's references within the node from version 2.13 on, which brought this
// header.
#if __has_include(<torch/csrc/autograd/node.h>)
#include <torch/csrc/autograd/node.h>
#define OSLO_NODES_COUNT_THEMSELVES 1
#else
#define OSLO_NODES_COUNT_THEMSELVES 0
namespace torch::autograd {
TORCH_API void deleteNode(Node* function);
}
#endif

/// What holds nodes of autograd's graph, in each LibTorch that the library is built with.
namespace oslo {

#if OSLO_NODES_COUNT_THEMSELVES

template <typename NodeType>
using NodeHandle = c10::intrusive_ptr<NodeType>;
/// A node that only weak handles are left of has been told so (`release_resources`), and is
/// destroyed with the last of them: what must go with the graph is let go there.
template <typename NodeType>
using WeakNodeHandle = c10::weak_intrusive_ptr<NodeType>;

template <typename NodeType, typename... Args>
NodeHandle<NodeType> make_node(Args&&... args) {
  return c10::make_intrusive<NodeType>(std::forward<Args>(args)...);
}

template <typename NodeType, typename OtherType>
NodeHandle<NodeType> node_cast(const NodeHandle<OtherType>& node) {
  auto* const found = dynamic_cast<NodeType*>(node.get());
  if (found == nullptr) return NodeHandle<NodeType>();
  return NodeHandle<NodeType>::unsafe_reclaim_from_nonowning(found);
}

#else

template <typename NodeType>
using NodeHandle = std::shared_ptr<NodeType>;
template <typename NodeType>
using WeakNodeHandle = std::weak_ptr<NodeType>;

/// `deleteNode` takes a long chain of nodes apart without recursion.
template <typename NodeType, typename... Args>
NodeHandle<NodeType> make_node(Args&&... args) {
  return {new NodeType(std::forward<Args>(args)...), torch::autograd::deleteNode};
}

/// Null where the node is of another type.
template <typename NodeType, typename OtherType>
NodeHandle<NodeType> node_cast(const NodeHandle<OtherType>& node) {
  return std::dynamic_pointer_cast<NodeType>(node);
}

#endif

using NodePtr = NodeHandle<torch::autograd::Node>;
using WeakNodePtr = WeakNodeHandle<torch::autograd::Node>;

}  // namespace oslo
