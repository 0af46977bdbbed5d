#include "parallelizers/placement/elsewhere/ordinary_gradients.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <set>
#include <vector>

#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/graph/front_nodes.h"

namespace oslo {

at::Tensor OrdinaryGradients::lead(const at::Tensor& tensor, at::Tensor shape,
                                   const LayoutPtr& layout) {
  if (!c10::GradMode::is_enabled() || !tensor.requires_grad() || !shape.is_meta()) return shape;
  const torch::autograd::Edge place = torch::autograd::impl::gradient_edge(tensor);
  std::set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> left{place.function.get()};
  while (!left.empty()) {
    torch::autograd::Node* const node = left.back();
    left.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (auto* const leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      keep(leaf->variable);
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      left.push_back(edge.function.get());
    }
  }
  const BelowDoor below;
  at::Tensor led = shape.detach();
  lead_to(place, led, layout);
  return led;
}

void OrdinaryGradients::keep(const at::Tensor& leaf) {
  leaves_.try_emplace(leaf.unsafeGetTensorImpl(), leaf, leaf.grad());
}

void OrdinaryGradients::restore() {
  for (auto& [impl, kept] : leaves_) kept.first.mutable_grad() = kept.second;
  leaves_.clear();
}

}  // namespace oslo
