#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "parallelizers/placement/layout/context.h"

namespace oslo {

/// The gradients of parameters that several ranks of a pipeline have copies of (a tied embedding
/// and head): each rank computes those of its own stages' uses, and their sum is the parameter's.
/// While it lives, gradients from before stand aside, since all copies have them.
///
/// Copies stay equal bit for bit: each rank adds up the same addends in the order of the ranks.
class CopiedGradients {
 public:
  /// Of `parameters`, in an order that is the same on all ranks, those that are copies.
  CopiedGradients(ContextPtr context, const std::vector<at::Tensor>& parameters);
  /// Puts back what stood aside, where `add_up` was not reached.
  ~CopiedGradients();
  CopiedGradients(const CopiedGradients&) = delete;
  CopiedGradients& operator=(const CopiedGradients&) = delete;

  /// Whether there are none.
  bool empty() const { return copied_.empty(); }

  /// Gives every copy the sum over its ranks, on top of what stood aside. One message between each
  /// two ranks that share parameters, each way. Collective over the pipeline.
  void add_up();

 private:
  struct Copied {
    at::Tensor parameter;
    at::Tensor before;  ///< its gradient from before; undefined: none
  };
  void put_back();

  ContextPtr context_;
  std::vector<Copied> copied_;
};

}  // namespace oslo
