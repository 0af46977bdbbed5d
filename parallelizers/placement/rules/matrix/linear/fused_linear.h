#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include "parallelizers/placement/engine/kernel_fusion.h"
#include "parallelizers/placement/rules/matrix/linear/weight_form.h"

// What the nodes of a linear layer (linear_node.h) compute by the kernels of "kernel_fusion".

namespace oslo {

/// Whether the kernels take them: plain matrices of one floating type, with content.
bool kernels_take(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// x weight + bias, without history, and its GeLU too, where one is expected: x (.., k), bias (n)
/// or undefined.
at::Tensor fused_product(KernelFusion& fusion, const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias, WeightForm form);

struct WeightGradients {
  at::Tensor weight;  ///< in the weight's form; undefined where it was added to the parameter's
  at::Tensor bias;    ///< (n); undefined where it was not asked for
};
struct WeightGradientsOf {
  WeightForm form;
  bool column_major;  ///< how the weight lies in memory: its gradient will, too
  bool bias;
};
/// By the `gradient` (m, n) of the product with x (m, k). The weight's goes along `edge`: it is
/// added to the parameter's in place where that leads to one and nobody would notice
/// (carrier/graph/gradient_path.h).
WeightGradients fused_weight_gradients(LinearKernels& kernels, const torch::autograd::Edge& edge,
                                       const at::Tensor& gradient, const at::Tensor& x,
                                       const WeightGradientsOf& of);

}  // namespace oslo
