#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "parallelizers/placement/rules/matrix/linear/kept_operand.h"
#include "parallelizers/placement/rules/matrix/linear/weight_form.h"

namespace oslo {

class KernelFusion;

/// Which operands of a product backward gathers again, and from what.
struct ProductAgain {
  std::optional<GatheredAgain> x = {}, weight = {};
};

/// x (.., K) times a weight, plus bias (N; undefined: none): a linear layer on this rank's parts,
/// with LibTorch's values bit for bit. Its backward is two nodes, one for the gradient of x and one
/// for those of weight and bias, so that
///   - where x was copied or gathered for this product, and overlap pays, the collective that
///     backward does for x runs while the weight's gradient is computed (start_in_backward);
///   - in a SplitBackward::Scope the second belongs to the weight half, where weight and bias are
///     parameters, or these transposed or cast.
/// Differentiable twice. Operands that have no such backward (complex, sparse, of other shapes) are
/// LibTorch's own at::linear, at::addmm or at::matmul.
///
/// With `fusion`, kernels compute it and both gradients, rounded as they round (fused_linear.h):
///   - the GeLU too, where one is expected (kernel_fusion.h);
///   - the weight's gradient into that of the parameter, in place, where nobody would notice
///     (carrier/graph/gradient_path.h), and the bias's in the same pass; in the weight half, too;
///   - of an x that is such a GeLU, the gradient of the sum before it, in one pass, where nobody
///     looks at the GeLU's.
/// create_graph takes LibTorch's operators, which record.
///
/// What `again` says was gathered is not kept for backward, but its part.
at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          WeightForm form, KernelFusion* fusion = nullptr, ProductAgain again = {});

}  // namespace oslo
