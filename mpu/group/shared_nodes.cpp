#include "mpu/group/shared_nodes.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "mpu/group/place_behind.h"

namespace oslo {
namespace {

/// Where the gradient goes that `node` computes.
const torch::autograd::Node* place_behind(const torch::autograd::Node& node) {
  const auto* divided = dynamic_cast<const PlaceBehind*>(&node);
  const auto& behind = divided != nullptr ? divided->behind() : node.next_edge(0);
  return behind.function.get();
}

}  // namespace

NodePtr SharedNodes::find(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.tensor && entry.tensor->_unsafe_get_target() == tensor.unsafeGetTensorImpl() &&
        !entry.tensor->expired() && entry.version == tensor._version()) {
      NodePtr node = entry.node.lock();
      const auto place = torch::autograd::impl::gradient_edge(tensor).function;
      if (node && place_behind(*node) == place.get()) return node;
    }
  }
  return NodePtr();
}

void SharedNodes::remember(const at::Tensor& tensor, const NodePtr& node) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[next_++ % entries_.size()];
  entry.tensor.emplace(tensor.getIntrusivePtr());
  entry.version = tensor._version();
  entry.node = WeakNodePtr(node);
}

}  // namespace oslo
