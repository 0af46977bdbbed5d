#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace oslo {

/// Scales gradients in place so that their norm, taken over all of them as one vector, is at most
/// `max_norm`, and returns the norm that they had. As `torch::nn::utils::clip_grad_norm_`, which
/// gives the same on marked parameters but communicates for each of them: here each mesh axis
/// carries one small message for all parameters together, and none where nothing is cut.
///
/// Parts of a parameter that is cut are counted on every rank that holds one, whole parameters
/// once. A tensor that is listed twice counts twice and is scaled twice, as LibTorch does it:
/// `parameters()` lists what is registered, duplicates included. Parameters without a gradient are
/// passed over. Sparse gradients are taken with their values. Collective over the meshes of the
/// parameters: call it on all their ranks with the same list. With data parallelism, call it after
/// backward, when gradients are averaged already.
///
/// `norm_type` is above 0; infinity takes the largest absolute value. When the norm is not finite,
/// `error_if_nonfinite` throws on every rank and leaves the gradients alone.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                       double norm_type = 2.0, bool error_if_nonfinite = false);

}  // namespace oslo
