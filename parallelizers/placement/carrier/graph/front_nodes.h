#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <string>
#include <utility>

#include "parallelizers/placement/layout/layout.h"

namespace oslo {

// The nodes by which placed tensors stand in autograd's graph, beside those of their local tensors
// (graph_place.h).

/// From the gradient of a placed tensor to that of its local tensor.
class FrontNode final : public torch::autograd::Node {
 public:
  /// Numbered like the node that it leads to, which every rank has: when somebody looked, on this
  /// rank perhaps alone, has no part in the order of the backward pass.
  /// `written_since`: for a view of gathered elements, which it was made for too late.
  FrontNode(LayoutPtr layout, torch::autograd::Edge edge, bool written_since);

  std::string name() const override { return "OsloPlaced"; }
  const LayoutPtr& layout() const { return layout_; }
  /// Throws where the tensor is a view of gathered elements that were written since.
  void check_not_written() const;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

 private:
  LayoutPtr layout_;
  bool written_since_;
};

/// From the gradient of a local tensor to that of the placed tensor around it.
class BridgeNode final : public torch::autograd::Node {
 public:
  explicit BridgeNode(LayoutPtr layout) : layout_(std::move(layout)) {}

  std::string name() const override { return "OsloBridge"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

 private:
  LayoutPtr layout_;
};

/// Gives `local`, which has no history, one that leads to `place`: there its gradient is that of a
/// placed tensor in `layout`.
void lead_to(torch::autograd::Edge place, const at::Tensor& local, const LayoutPtr& layout);

/// Where the gradients of placed tensors that `torch::autograd::grad` is asked for arrive:
/// operators compute with the local tensors, whose histories do not pass the fronts.
torch::autograd::edge_list behind_fronts(const torch::autograd::edge_list& asked);
/// What arrived there, as gradients of the tensors that were asked for.
torch::autograd::variable_list before_fronts(const torch::autograd::edge_list& asked,
                                             torch::autograd::variable_list gradients);

/// Remembers of a user's autograd::Function, which does not know, how its result of this number
/// lies. It changes no gradient.
void note_layout(torch::autograd::Node& function, uint32_t result, const LayoutPtr& layout);

/// Throws where a user's autograd::Function took values of other pipeline stages than its result
/// lies on: its forward, which records nothing, was carried what they hold, and there the gradients
/// would end. A run that finds out which stages use a parameter gives those that the function took
/// to the earlier stage instead, so that it runs there.
void check_one_stage(const torch::autograd::Node& function, const Layout& result);

/// Throws where one of the tensors that a backward pass would start from is one that a pipeline's
/// stage holds. Each stage has its part of the graph, and none leads to what others hold. All ranks
/// that run the forward have these places, so that all of them throw.
void refuse_roots_of_stages(const torch::autograd::edge_list& roots);

}  // namespace oslo
