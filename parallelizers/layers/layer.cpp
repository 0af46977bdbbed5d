#include "parallelizers/layers/layer.h"

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include "mpu/base/error.h"
#include "parallelizers/modules/module_tree.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo::nn {

void cut_parameter(const at::Tensor& parameter, const MeshPtr& mesh, int64_t dim,
                   const std::string& name) {
  Layout layout = make_layout(mesh, {Placement::shard(dim)}, parameter.sizes());
  if (layout.whole()) return;
  mark_parameter(parameter, std::make_shared<Layout>(std::move(layout)), name);
}

bool is_left_to_plan(LayerIdx& layer, const MPU& mpu, const std::string& axis, const char* style) {
  if (!layer.layer_idx || mpu.size("pipeline") == 1) return false;
  layer.left_to_plan = axis == "tensor" ? style : axis + ": " + style;
  return true;
}

void own_parameters(torch::nn::Module& copy, const std::optional<at::Device>& device) {
  const c10::AutoGradMode no_grad(false);
  for (auto& parameter : registered_parameters(copy)) {
    at::Tensor& tensor = parameter.value();
    if (!tensor.defined()) continue;
    const bool trained = tensor.requires_grad();
    tensor = device && tensor.device() != *device ? tensor.to(*device) : tensor.clone();
    tensor.set_requires_grad(trained);
  }
}

void save_layer(const torch::nn::Module& layer, torch::serialize::OutputArchive& archive) {
  for (const auto& parameter : layer.named_parameters(/*recurse=*/false)) {
    OSLO_CHECK(!is_placed(parameter.value()), "torch::save would write only this rank's part of ",
               parameter.key(), " of a ", class_name(layer),
               "; use save_parallelized(path), with SaveOptions().merge_checkpoints(true) for one "
               "file of the whole model");
  }
  layer.torch::nn::Module::save(archive);
}

void assign_part(const at::Tensor& parameter, const at::Tensor& whole) {
  if (!parameter.defined()) return;
  const c10::AutoGradMode no_grad(false);
  const LayoutPtr kept = layout(parameter);
  parameter.copy_(kept ? local_part(whole, *kept) : whole);
}

int ranks_of(const at::Tensor& parameter) {
  int ranks = 1;
  const LayoutPtr kept = layout(parameter);
  for (int axis = 0; kept && axis < kept->axes(); ++axis) {
    if (!(*kept)[axis].whole()) ranks *= kept->group(axis)->size();
  }
  return ranks;
}

}  // namespace oslo::nn
