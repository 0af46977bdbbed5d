#include "parallelizers/layers/linear.h"

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include <typeinfo>

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "parallelizers/layers/layer.h"
#include "parallelizers/modules/module_tree.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/layout/moving/redistribute.h"

namespace oslo::nn {
namespace {

const torch::nn::LinearOptions& checked(const LinearOptions& options) {
  OSLO_CHECK(options.in_features() > 0 && options.out_features() > 0, "a parallel linear layer of ",
             options.in_features(), " x ", options.out_features(),
             " features; both must be positive");
  const std::string& parallel = options.parallel();
  OSLO_CHECK(parallel == "col" || parallel == "row" || parallel == "data", "parallel(\"", parallel,
             "\") of a linear layer is not known: use \"col\", \"row\" or \"data\"");
  OSLO_CHECK(!options.gather_output() || parallel == "col",
             "gather_output is for column parallel layers, this one is \"", parallel, "\"");
  OSLO_CHECK(!options.input_is_parallel() || parallel == "row",
             "input_is_parallel is for row parallel layers, this one is \"", parallel, "\"");
  OSLO_CHECK(!options.keep_gathered(),
             "keep_gathered is for layers on a grid, such as oslo::nn::Linear2D; this one keeps "
             "what it gathers");
  return options;
}

/// How a plan says it.
const char* style_of(const std::string& parallel) {
  if (parallel == "data") return "replicate";
  return parallel == "col" ? "column" : "row";
}

/// Joined along its last dimension alone: its rows may be cut over data ranks.
at::Tensor whole_features(const at::Tensor& y) {
  const LayoutPtr lies = layout(y);
  if (!lies) return y;
  auto target = std::make_shared<Layout>(*lies);
  for (int axis = 0; axis < target->axes(); ++axis) {
    if ((*target)[axis].dim == y.dim() - 1) (*target)[axis] = {};
  }
  if (target->whole() && !target->resident()) return full_tensor(y);
  const RuleScope scope("gather_output");
  return wrap(redistribute(value_of(y), std::move(target)));
}

void mark_like(const at::Tensor& parameter, const LayoutPtr& kept, const char* name) {
  if (kept) mark_parameter(parameter, kept, name);
}

}  // namespace

LinearOptions LinearOptions::cut(const std::string& parallel) const {
  OSLO_CHECK(parallel_ == "data" || parallel_ == parallel, "parallel(\"", parallel_,
             "\") was given to a ",
             parallel == "col" ? "ColumnParallelLinear" : "RowParallelLinear", ", which is \"",
             parallel, "\"; leave it out, or use oslo::nn::Linear");
  return LinearOptions(*this).parallel(parallel);
}

LinearImpl::LinearImpl(const LinearOptions& options, const MPU& mpu)
    : torch::nn::LinearImpl(checked(options)),
      parallel_(options.parallel()),
      gather_output_(options.gather_output()),
      input_is_parallel_(options.input_is_parallel()) {
  layer_idx = options.layer_idx();
  if (is_left_to_plan(*this, mpu, options.axis(), style_of(parallel_))) return;
  const MeshPtr mesh = mpu.mesh({options.axis()});
  if (parallel_ == "col") {
    cut_parameter(weight, mesh, 0, "weight");
    if (bias.defined()) cut_parameter(bias, mesh, 0, "bias");
  } else if (parallel_ == "row") {
    cut_parameter(weight, mesh, 1, "weight");
  }
}

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  const LayoutPtr kept = layout(weight);
  const bool part = input_is_parallel_ && kept && !is_placed(input);
  if (!part) {
    const at::Tensor y = torch::nn::LinearImpl::forward(input);
    return gather_output_ ? whole_features(y) : y;
  }
  auto sizes = input.sizes().vec();
  sizes.back() = options.in_features();
  return torch::nn::LinearImpl::forward(
      from_local(input, kept->context(), {Placement::shard(input.dim() - 1)}, sizes));
}

void LinearImpl::reset() {
  const LayoutPtr of_weight = layout(weight), of_bias = layout(bias);
  torch::nn::LinearImpl::reset();
  mark_like(weight, of_weight, "weight");
  if (bias.defined()) mark_like(bias, of_bias, "bias");
}

void LinearImpl::reset_parameters() {
  const torch::nn::LinearImpl drawn(options);
  assign_part(weight, drawn.weight);
  assign_part(bias, drawn.bias);
}

template <typename Layer>
std::shared_ptr<torch::nn::Module> LinearImpl::clone_of(const Layer& layer,
                                                        const std::optional<at::Device>& device) {
  auto copy = std::make_shared<Layer>(layer);
  own_parameters(*copy, device);
  const auto& parameters = registered_parameters(*copy);
  copy->weight = parameters["weight"];
  if (copy->bias.defined()) copy->bias = parameters["bias"];
  return copy;
}

std::shared_ptr<torch::nn::Module> LinearImpl::clone(
    const std::optional<at::Device>& device) const {
  return clone_of(*this, device);
}

std::shared_ptr<torch::nn::Module> ColumnParallelLinearImpl::clone(
    const std::optional<at::Device>& device) const {
  return clone_of(*this, device);
}

std::shared_ptr<torch::nn::Module> RowParallelLinearImpl::clone(
    const std::optional<at::Device>& device) const {
  return clone_of(*this, device);
}

void LinearImpl::save(torch::serialize::OutputArchive& archive) const {
  save_layer(*this, archive);
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << class_name(*this) << "(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << ", bias=" << bias.defined();
  if (typeid(*this) == typeid(LinearImpl)) stream << ", parallel=" << parallel_;
  const int ranks = ranks_of(weight);
  stream << ", ranks=" << ranks;
  if (weight.size(0) != options.out_features()) stream << ", local_out_features=" << weight.size(0);
  if (weight.size(1) != options.in_features()) stream << ", local_in_features=" << weight.size(1);
  stream << ")";
}

}  // namespace oslo::nn
