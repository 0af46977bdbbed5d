#include "parallelizers/placement/carrier/graph/gradient_path.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/graph_task.h>

#include "parallelizers/placement/carrier/accumulate_marked.h"

namespace oslo {
namespace {

using torch::autograd::Node;

/// Whether somebody looks at the gradients that arrive at `node` or leave it.
bool is_watched(Node& node) {
  return !node.pre_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty() || !node.post_hooks().empty();
}

/// Whether this backward pass runs `node`, and hands out nothing of what arrives there.
bool only_runs(Node& node) {
  const auto* const tasks = torch::autograd::get_current_graph_task_exec_info();
  if (tasks == nullptr || tasks->empty()) return true;  // all nodes run
  const auto found = tasks->find(&node);
  return found != tasks->end() && found->second.needed_ && !found->second.captures_;
}

}  // namespace

bool only_passes(Node& node) {
  return !is_watched(node) && only_runs(node);
}

bool add_along(const torch::autograd::Edge& edge,
               const std::function<void(const at::Tensor& gradient)>& add) {
  if (c10::GradMode::is_enabled()) return false;
  bool turned = false;
  Node* node = edge.function.get();
  const auto passes = [](Node* each) {
    return each != nullptr && each->num_outputs() == 1 && only_passes(*each);
  };
  while (passes(node) && dynamic_cast<torch::autograd::generated::TBackward0*>(node) != nullptr) {
    turned = !turned;
    node = node->next_edge(0).function.get();
  }
  if (!passes(node) || node->name() != "OsloUnmark") return false;  // value_of_marked, in mark.cpp
  Node* const accumulator = node->next_edge(0).function.get();
  if (accumulator == nullptr || !only_runs(*accumulator)) return false;
  return add_to_gradient(
      *accumulator, [&](const at::Tensor& gradient) { add(turned ? gradient.t() : gradient); });
}

}  // namespace oslo
