#include "parallelizers/placement/carrier/graph/accumulators.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>
#include <vector>

#include "parallelizers/placement/carrier/accumulate_marked.h"

namespace oslo {
namespace {

using torch::autograd::Node;

/// Undefined for a node at which no gradients arrive.
at::Tensor parameter_at(const Node& node) {
  if (const auto* plain = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node)) {
    return plain->variable;
  }
  return accumulated_parameter(node);
}

}  // namespace

void for_each_accumulator(
    const at::Tensor& loss,
    const std::function<void(const at::Tensor& parameter, const Node& node)>& see) {
  if (!loss.requires_grad()) return;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> next{torch::autograd::impl::gradient_edge(loss).function.get()};
  while (!next.empty()) {
    const Node* const node = next.back();
    next.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    for (const auto& edge : node->next_edges()) next.push_back(edge.function.get());
    const at::Tensor parameter = parameter_at(*node);
    if (parameter.defined()) see(parameter, *node);
  }
}

}  // namespace oslo
