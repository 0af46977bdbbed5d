#pragma once

#include <torch/csrc/autograd/edge.h>

namespace oslo {

/// What a node has that another one may be put behind: where the gradient of its input goes then.
class PlaceBehind {
 public:
  virtual const torch::autograd::Edge& behind() const = 0;

 protected:
  ~PlaceBehind() = default;
};

}  // namespace oslo
