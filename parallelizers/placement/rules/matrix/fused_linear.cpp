#include "parallelizers/placement/rules/matrix/fused_linear.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <utility>

#include "parallelizers/placement/carrier/gradient_path.h"
#include "parallelizers/placement/carrier/split_backward.h"

namespace oslo {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// (.., n) as a matrix.
at::Tensor rows_of(const at::Tensor& tensor) {
  return tensor.reshape({-1, tensor.size(-1)});
}

class FusedLinear final : public Node {
 public:
  enum Edges { kInput, kWeight, kBias, kBeforeGelu };

  FusedLinear(std::shared_ptr<LinearKernels> kernels, const at::Tensor& x, const at::Tensor& weight)
      : kernels_(std::move(kernels)),
        x_(x, /*is_output=*/false),
        weight_(weight, false),
        gelu_(gelu_node_of(x)) {}

  /// What the input is the GeLU of gets its gradient from here, or by way of the GeLU.
  const std::shared_ptr<GeluNode>& gelu() const { return gelu_; }

  std::string name() const override { return "OsloFusedLinear"; }

  variable_list apply(variable_list&& gradients) override {
    variable_list results(num_outputs());
    if (!gradients[0].defined()) return results;
    const at::Tensor& gradient = gradients[0];
    give_input(results, gradient);
    const bool bias = task_should_compute_output(kBias);
    if (c10::GradMode::is_enabled()) {
      const at::Tensor rows = rows_of(gradient);
      if (task_should_compute_output(kWeight)) {
        results[kWeight] = rows_of(x_.unpack()).t().mm(rows);
      }
      if (bias) results[kBias] = rows.sum(0);
    } else if (task_should_compute_output(kWeight)) {
      give_weight(results, rows_of(gradient), bias);
    } else if (bias) {
      results[kBias] = rows_of(gradient).sum(0);
    }
    return results;
  }

  void release_variables() override {
    x_.reset_data();
    weight_.reset_data();
  }

 private:
  void give_input(variable_list& results, const at::Tensor& gradient) {
    if (!task_should_compute_output(kInput)) return;
    const at::Tensor turned = weight_.unpack().t();
    if (!gelu_ || c10::GradMode::is_enabled() || !only_passes(*gelu_)) {
      results[kInput] = gradient.matmul(turned);
      return;
    }
    const at::Tensor sum = gelu_->sum();
    results[kBeforeGelu] =
        kernels_->product_and_gelu_backward(rows_of(gradient), turned, rows_of(sum))
            .view(sum.sizes());
  }

  void give_weight(variable_list& results, const at::Tensor& gradient, bool bias) {
    using Into = LinearKernels::Into;
    const at::Tensor x = rows_of(x_.unpack());
    const bool added = add_along(next_edge(kWeight), [&](const at::Tensor& so_far) {
      results[kBias] = kernels_->weight_gradient(so_far.t(), Into::adds, gradient, x, bias);
    });
    if (added) return;
    results[kWeight] = at::empty_like(weight_.unpack());
    results[kBias] =
        kernels_->weight_gradient(results[kWeight].t(), Into::overwrites, gradient, x, bias);
  }

  std::shared_ptr<LinearKernels> kernels_;
  SavedVariable x_, weight_;
  std::shared_ptr<GeluNode> gelu_;
};

}  // namespace

bool takes_fused_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (SplitBackward::current()) return false;  // whose products of weights run later
  const auto type = weight.scalar_type();
  const auto fits = [&](const at::Tensor& each) {
    return each.scalar_type() == type && each.layout() == at::kStrided && !each.is_meta();
  };
  return at::isFloatingType(type) && weight.dim() == 2 && x.dim() >= 2 && weight.numel() > 0 &&
         x.numel() > 0 && fits(x) && fits(weight) &&
         (!bias.defined() || (bias.dim() == 1 && fits(bias)));
}

at::Tensor fused_linear(KernelFusion& fusion, const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& bias) {
  at::Tensor sum, activation;
  {
    // What stands in the graph is the node below.
    const at::AutoDispatchBelowADInplaceOrView below;
    if (fusion.gelu_follows(weight)) {
      auto sizes = x.sizes().vec();
      sizes.back() = weight.size(1);
      auto both = fusion.kernels()->product_and_gelu(rows_of(x), weight, bias);
      sum = both.sum.view(sizes);
      activation = both.activation.view(sizes);
    } else {
      sum = at::linear(x, weight.t(), bias.defined() ? std::optional(bias) : std::nullopt);
    }
  }
  if (c10::GradMode::is_enabled() && torch::autograd::compute_requires_grad(x, weight, bias)) {
    const std::shared_ptr<FusedLinear> node(new FusedLinear(fusion.kernels(), x, weight),
                                            torch::autograd::deleteNode);
    node->set_next_edges(torch::autograd::collect_next_edges(x, weight, bias));
    if (node->gelu()) node->add_next_edge(node->gelu()->next_edge(0));
    torch::autograd::set_history(sum, node);
  }
  fusion.computed(sum, weight, std::move(activation));
  return sum;
}

}  // namespace oslo
