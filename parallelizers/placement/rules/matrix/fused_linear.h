#pragma once

#include <ATen/core/Tensor.h>

#include "parallelizers/placement/engine/kernel_fusion.h"

namespace oslo {

/// Whether `fused_linear` takes them: plain matrices of one floating type, with content, whose
/// backward is not in two halves (carrier/split_backward.h).
bool takes_fused_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// x weight + bias on this rank's parts: x (.., k), weight (k, n), bias (n) or undefined. One node
/// in autograd's graph, as large as that of a linear layer, which
///
/// - computes the GeLU too, where one is expected (kernel_fusion.h);
/// - adds the weight's gradient to that of the parameter in place, where nobody would notice
///   (carrier/gradient_path.h), and takes the bias's in the same pass;
/// - of an input that is such a GeLU, gives the gradient of the sum before it, in one pass, where
///   nobody looks at the GeLU's.
///
/// create_graph takes LibTorch's operators, which record.
at::Tensor fused_linear(KernelFusion& fusion, const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& bias);

}  // namespace oslo
