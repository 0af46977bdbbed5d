#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "mpu/group/group.h"

namespace oslo {

/// Classes that ranks of `group` hold parts of.
struct CutClasses {
  std::shared_ptr<Group> group;
  int64_t dim;    ///< of the logits
  int64_t first;  ///< the first class of this rank
  int64_t all;    ///< over all ranks
  double smoothing;
};

/// Cross entropy over classes that are cut (Megatron-LM's vocabulary-parallel loss, arXiv
/// 1909.08053), one of each target, which is one of all classes. `logits` (M, V/p), or more
/// dimensions with the classes second. Two all-reduces, the maximum and one packed sum of (exp,
/// picked logit, and all logits when labels are smoothed); none in backward, one where that is
/// recorded (create_graph). One node, which keeps one tensor of the logits' size.
at::Tensor vocabulary_loss(const at::Tensor& logits, const at::Tensor& target,
                           const CutClasses& classes);

}  // namespace oslo
