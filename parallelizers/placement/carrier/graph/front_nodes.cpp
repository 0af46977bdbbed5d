#include "parallelizers/placement/carrier/graph/front_nodes.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/base/node_ptr.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/residency/stage_carrier.h"

namespace oslo {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

/// How the results of a user's autograd::Function lie, by their numbers: whatever takes one leads
/// to the function's node.
class ResultLayouts final : public torch::autograd::FunctionPostHook {
 public:
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    return outputs;
  }
  static ResultLayouts* find(const Node& function) {
    for (const auto& hook : function.post_hooks()) {
      if (auto* const noted = dynamic_cast<ResultLayouts*>(hook.get())) return noted;
    }
    return nullptr;
  }

  std::map<uint32_t, LayoutPtr> by_result;
};

/// Of the placed tensor that stands there; null where none does.
LayoutPtr layout_at(const Edge& place) {
  if (!place.function) return nullptr;
  if (const auto* const front = dynamic_cast<const FrontNode*>(place.function.get())) {
    return front->layout();
  }
  const ResultLayouts* const noted = ResultLayouts::find(*place.function);
  if (noted == nullptr) return nullptr;
  const auto found = noted->by_result.find(place.input_nr);
  return found == noted->by_result.end() ? nullptr : found->second;
}

/// The parameters that a value is a view of, or computed from in a few steps; none where it leads
/// to anything else.
std::vector<at::Tensor> parameters_behind(const Edge& value) {
  constexpr size_t kMostSteps = 8;
  std::vector<at::Tensor> found;
  std::vector<const Node*> open{value.function.get()};
  for (size_t step = 0; step < open.size(); ++step) {
    const at::Tensor parameter = accumulated_parameter(*open[step]);
    if (parameter.defined()) {
      found.push_back(parameter);
      continue;
    }
    if (open[step]->num_outputs() == 0 || step == kMostSteps) return {};
    for (const Edge& next : open[step]->next_edges()) {
      if (next.function) open.push_back(next.function.get());
    }
  }
  return found;
}

/// Parameters that a function took, or views of them, on stages that `taken` is not of, in a run
/// that finds out who uses what: they are wanted there as well, where the function then runs.
/// False: there are none.
bool lend_parameters(const Node& function, StageSet taken) {
  StageCarrier* const carrier = StageCarrier::current();
  UseFollower* const follower = carrier == nullptr ? nullptr : carrier->follower();
  bool lent = false;
  for (const Edge& edge : function.next_edges()) {
    if (follower == nullptr || !edge.function) continue;
    for (const at::Tensor& parameter : parameters_behind(edge)) {
      const Mark* const mark = mark_of(parameter);
      if (mark == nullptr || !mark->layout->resident()) continue;
      if (!(mark->layout->stages() & taken).empty()) continue;
      lent |= follower->lends(parameter, taken.first());
    }
  }
  return lent;
}

}  // namespace

FrontNode::FrontNode(LayoutPtr layout, Edge edge, bool written_since)
    : Node(edge.function ? edge.function->sequence_nr() : 0, {edge}),
      layout_(std::move(layout)),
      written_since_(written_since) {}

variable_list FrontNode::apply(variable_list&& gradients) {
  if (!gradients[0].defined()) return {at::Tensor()};
  check_not_written();
  return {local_in(std::move(gradients[0]), layout_)};
}

void FrontNode::check_not_written() const {
  OSLO_CHECK(!written_since_,
             "the gradient of a view that had to be gathered was asked for after the tensor that "
             "it views was written; take it through an operator on the view (such as clone())");
}

variable_list BridgeNode::apply(variable_list&& gradients) {
  if (!gradients[0].defined()) return {at::Tensor()};
  return {wrap({gradients[0], layout_})};
}

void lead_to(Edge place, const at::Tensor& local, const LayoutPtr& layout) {
  const auto node = make_node<BridgeNode>(layout);
  node->add_next_edge(std::move(place));
  node->add_input_metadata(local);
  torch::autograd::impl::set_gradient_edge(local, Edge(node, 0));
}

edge_list behind_fronts(const edge_list& asked) {
  edge_list sought = asked;
  for (Edge& place : sought) {
    const auto* const front = dynamic_cast<const FrontNode*>(place.function.get());
    if (front == nullptr) continue;
    front->check_not_written();
    place = Edge(front->next_edge(0));
  }
  return sought;
}

variable_list before_fronts(const edge_list& asked, variable_list gradients) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto* const front = dynamic_cast<const FrontNode*>(asked[i].function.get());
    if (front == nullptr || !gradients[i].defined()) continue;
    if (placed_impl(gradients[i]) == nullptr) gradients[i] = wrap({gradients[i], front->layout()});
  }
  return gradients;
}

void note_layout(Node& function, uint32_t result, const LayoutPtr& layout) {
  ResultLayouts* noted = ResultLayouts::find(function);
  if (noted == nullptr) {
    auto made = std::make_unique<ResultLayouts>();
    noted = made.get();
    function.add_post_hook(std::move(made));
  }
  noted->by_result[result] = layout;
}

void check_one_stage(const Node& function, const Layout& result) {
  for (const Edge& edge : function.next_edges()) {
    const LayoutPtr layout = layout_at(edge);
    const StageSet taken = layout ? layout->stages() : StageSet();
    if (taken.empty() || !result.resident() || !(taken & result.stages()).empty()) continue;
    if (lend_parameters(function, taken)) continue;
    fail(function.name(), ", a torch::autograd::Function, took a value of pipeline ",
         taken.to_string(), " and computed on ", result.stages().to_string(),
         ", and the gradient of that value would not get back; plan the parameters that it "
         "takes for the earlier stage as well, or let it take values of one stage");
  }
}

void refuse_roots_of_stages(const torch::autograd::edge_list& roots) {
  for (const Edge& root : roots) {
    const LayoutPtr layout = layout_at(root);
    OSLO_CHECK(!layout || !layout->resident() || !layout->context()->pipeline(),
               "torch::autograd::grad of a value that pipeline ", layout->stages().to_string(),
               " holds: each stage has its part of the graph, and the passes over it are run by "
               "oslo::PipelineSchedule; write the derivative as operators of the forward, or train "
               "this model without a pipeline");
  }
}

}  // namespace oslo
