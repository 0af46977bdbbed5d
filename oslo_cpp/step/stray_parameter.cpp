#include "oslo_cpp/step/stray_parameter.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "mpu/base/error.h"
#include "oslo_cpp/model/initialized_tag.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"

namespace oslo {
namespace {

using torch::autograd::Node;

/// The parameter whose gradients arrive at a node; undefined for other nodes.
at::Tensor parameter_at(const Node& node) {
  if (const auto* plain = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node)) {
    return plain->variable;
  }
  return accumulated_parameter(node);
}

}  // namespace

void check_learns_only(const at::Tensor& loss, const StrayGradients::Parameters& own) {
  const at::Tensor local = local_tensor(loss);
  if (!local.requires_grad()) return;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> next{torch::autograd::impl::gradient_edge(local).function.get()};
  while (!next.empty()) {
    const Node* const node = next.back();
    next.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    for (const auto& edge : node->next_edges()) next.push_back(edge.function.get());
    const at::Tensor parameter = parameter_at(*node);
    if (!parameter.defined() || own.count(parameter.unsafeGetTensorImpl()) > 0) continue;
    const std::string name = initialized_name(parameter);
    if (name.empty() || !node->post_hooks().empty()) continue;
    fail("a parameter of another model, ", name, " ", parameter.sizes(),
         ", would get a gradient in this step, and a PipelineSchedule averages those of its own "
         "models",
         kNameAllModels);
  }
}

}  // namespace oslo
