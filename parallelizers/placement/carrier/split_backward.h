#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "mpu/base/node_ptr.h"

namespace oslo {

class WeightHalfNode;

/// A backward pass in two halves, of one micro-batch on one pipeline stage (zero bubble, Qi et al.
/// 2023, arXiv 2401.10241). The input half is autograd's own pass over a graph that was recorded in
/// a `Scope`: it ends before the products that give gradients of weights, and before any marked
/// parameter. `run` is the weight half: those products, then each parameter's accumulator, once,
/// with the sum of all that the micro-batch gives to it; so post-accumulate hooks and LibTorch's
/// Reducer see one gradient a parameter.
///
/// Between the halves a linear layer keeps its saved input (whose version is checked when it is
/// used) and the gradient of its result, and frees each after its product. Gradients that other
/// operators give to parameters are computed in the input half and kept. Gradients of ordinary
/// (unmarked) leaves are not deferred; in a model with stages every parameter is marked.
///
/// `create_graph` and `retain_graph` are refused by name when the input half meets a node of the
/// weight half. A SplitBackward that is dropped without `run` drops these gradients.
///
/// Cost: nothing outside of a scope. Thread safety: the scope belongs to a thread; the halves may
/// run on any threads (the engine's too), one after the other.
class SplitBackward {
 public:
  /// While it lives, what this thread records belongs to `split` (null: backward is one again).
  class Scope {
   public:
    explicit Scope(std::shared_ptr<SplitBackward> split);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<SplitBackward> previous_;
  };

  /// That of the innermost scope of this thread; null without one.
  static const std::shared_ptr<SplitBackward>& current();

  /// The weight half; after it nothing is left. Once for each input half, in that order. Products
  /// run in the order of backward: those of the last layer first. Throws what a node throws, such
  /// as a saved input that has been written to since.
  void run();

  /// How many nodes wait for the weight half.
  size_t left() const;

 private:
  friend class WeightHalfNode;
  void hold(const NodeHandle<WeightHalfNode>& node);
  void leave(NodeHandle<WeightHalfNode> node);

  mutable std::mutex mutex_;
  std::vector<std::pair<WeakNodeHandle<WeightHalfNode>, torch::autograd::edge_list>> held_;
  std::vector<NodeHandle<WeightHalfNode>> left_;
};

/// A node with one input whose work belongs to the weight half. Without a SplitBackward it is a
/// node like any other.
class WeightHalfNode : public torch::autograd::Node {
 public:
  using torch::autograd::Node::Node;

  /// Of a node that has all its edges and is owned by a handle: the input half ends here.
  void belong_to(const std::shared_ptr<SplitBackward>& split);

  /// Whether the input half ends here.
  bool is_held() const { return held_; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) final;
  void release_variables() final;
#if OSLO_NODES_COUNT_THEMSELVES
  /// SplitBackward's weak handles outlive a graph that nobody runs backward.
  void release_resources() final {
    release();
    gradient_.reset();
    Node::release_resources();
  }
#endif

 protected:
  /// The gradients of the edges.
  virtual torch::autograd::variable_list backward(at::Tensor gradient) = 0;
  /// What backward needs is needed no more.
  virtual void release() {}
  /// The input half is over: what it alone needs can go.
  virtual void keep_for_later() {}

 private:
  friend class SplitBackward;
  std::weak_ptr<SplitBackward> split_;
  bool held_ = false;    ///< its edges are with the SplitBackward
  at::Tensor gradient_;  ///< between the halves
};

}  // namespace oslo
