#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

#include "mpu/base/node_ptr.h"

namespace torch::autograd {
struct Node;
}

namespace oslo {

/// What LibTorch's Reducer is given in the place of parameters whose gradients are of another type
/// than they are: it makes its buckets of the parameters' type, and refuses other gradients. A
/// stand-in has the gradients' type, no memory, and the parameter's accumulator, so that it gets
/// the reducer's hooks and is found in graphs. Parameters with gradients of their own type stand
/// for themselves, and nothing is done. One thread at a time.
class StandIns {
 public:
  explicit StandIns(const std::vector<at::Tensor>& parameters);

  /// For the reducer, in the order of the parameters.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// The parameters that such stand for.
  std::vector<at::Tensor> parameters_of(const std::vector<at::Tensor>& tensors) const;

  /// Whether there are stand-ins.
  bool any() const { return !index_.empty(); }
  bool stands_in(size_t index) const { return !tensors_[index].is_same(parameters_[index]); }

  /// Gives stand-ins the gradients that the parameters have now, over the same memory: before the
  /// reducer looks.
  void hand_out();
  void hand_out(size_t index);
  /// The other way round, where the reducer has made a gradient of its own.
  void take_back(size_t index);

 private:
  std::vector<at::Tensor> parameters_, tensors_;
  std::vector<NodePtr> accumulators_;  ///< tensors know theirs by weak handles
  std::unordered_map<const c10::TensorImpl*, size_t> index_;  ///< of stand-ins
};

}  // namespace oslo
