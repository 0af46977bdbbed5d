#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>

#include "mpu/grid/mpu.h"
#include "parallelizers/modules/layer_idx.h"
#include "parallelizers/placement/layout/layout.h"

namespace oslo::nn {

/// What the parallel layers have in common: they are LibTorch's own layers whose parameters are
/// marked, so `forward` is inherited, and a loop over `as<torch::nn::Linear>()` finds them.

/// Cuts dimension `dim` of a layer's parameter over the mesh (one axis), in place. Does nothing on
/// a mesh of one rank.
void cut_parameter(const at::Tensor& parameter, const MeshPtr& mesh, int64_t dim,
                   const std::string& name);

/// Whether a layer that says on which pipeline stage it lies is left whole for `initialize`, as it
/// is on a grid that has stages; notes then how it is to be cut over `axis` (`style`, in a plan's
/// words).
bool is_left_to_plan(LayerIdx& layer, const MPU& mpu, const std::string& axis, const char* style);

/// Gives `copy`, a copied module that still shares its tensors, parameters of its own, marked
/// alike, on `device` if given.
void own_parameters(torch::nn::Module& copy, const std::optional<at::Device>& device);

/// `Module::save` of a layer. Throws when a parameter is cut: a file would hold one rank's part and
/// pass for the whole. Whatever is cut refuses to be written (placement/serialization.cpp); a layer
/// does so before torch::save has opened the file.
void save_layer(const torch::nn::Module& layer, torch::serialize::OutputArchive& archive);

/// Overwrites this rank's part of `parameter` with that of `whole`; a plain parameter entirely.
/// Does nothing when both are undefined.
void assign_part(const at::Tensor& parameter, const at::Tensor& whole);

/// How many ranks share the tensor: the product of the sizes of the axes that cut it.
int ranks_of(const at::Tensor& parameter);

}  // namespace oslo::nn
