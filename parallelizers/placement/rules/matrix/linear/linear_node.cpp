#include "parallelizers/placement/rules/matrix/linear/linear_node.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "mpu/base/node_ptr.h"
#include "mpu/collectives/collectives.h"
#include "parallelizers/placement/carrier/graph/gradient_path.h"
#include "parallelizers/placement/carrier/split_backward.h"
#include "parallelizers/placement/rules/matrix/linear/fused_linear.h"

namespace oslo {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                   WeightForm form) {
  if (form == WeightForm::output_first) {
    return at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
  }
  return bias.defined() ? at::addmm(bias, x, weight) : at::matmul(x, weight);
}

/// `x` (rows, K), `gradient` (rows, N). The result lies in memory as the weight does.
at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& x, WeightForm form,
                           bool column_major) {
  if (form == WeightForm::output_first) return gradient.t().mm(x);
  return column_major ? gradient.t().mm(x).t() : x.t().mm(gradient);
}

bool is_column_major(const at::Tensor& matrix) {
  return matrix.stride(0) == 1 && matrix.stride(1) == matrix.size(0);
}

/// (.., n) as (rows, n).
at::Tensor as_matrix(const at::Tensor& tensor) {
  if (tensor.dim() == 2) return tensor;
  int64_t rows = 1;
  for (const int64_t size : tensor.sizes().slice(0, tensor.dim() - 1)) rows *= size;
  return tensor.reshape({rows, tensor.size(-1)});
}

/// For the gradients of weight and bias. `kernels`: null for LibTorch's operators.
class LinearWeightBackward final : public WeightHalfNode {
 public:
  LinearWeightBackward(const at::Tensor& x, std::optional<GatheredAgain> again,
                       const at::Tensor& weight, const at::Tensor& bias, WeightForm form,
                       std::shared_ptr<LinearKernels> kernels)
      : kernels_(std::move(kernels)), form_(form) {
    if (weight.requires_grad()) {
      x_ = KeptOperand(x, std::move(again));
      column_major_ = is_column_major(weight);
      for_weight_ = true;
      add_next_edge(torch::autograd::impl::gradient_edge(weight));
    }
    if (bias.defined() && bias.requires_grad()) {
      for_bias_ = true;
      add_next_edge(torch::autograd::impl::gradient_edge(bias));
    }
  }

  std::string name() const override { return "OsloLinearWeightBackward"; }

 private:
  variable_list backward(at::Tensor gradient) override {
    variable_list gradients(num_outputs());
    const at::Tensor rows = as_matrix(gradient);
    const size_t of_bias = for_weight_ ? 1 : 0;
    const bool bias = for_bias_ && task_should_compute_output(of_bias);
    if (for_weight_ && task_should_compute_output(0)) {
      const at::Tensor x = as_matrix(x_.unpack(getptr()));
      if (kernels_ && !c10::GradMode::is_enabled()) {
        WeightGradients both =
            fused_weight_gradients(*kernels_, next_edge(0), rows, x, {form_, column_major_, bias});
        gradients[0] = std::move(both.weight);
        if (bias) gradients[of_bias] = std::move(both.bias);
        return gradients;
      }
      gradients[0] = weight_gradient(rows, x, form_, column_major_);
    }
    if (bias) gradients[of_bias] = rows.sum(0);
    return gradients;
  }

  void release() override { x_.reset(); }

  void keep_for_later() override {
    if (for_weight_) x_.leave_graph(getptr());
  }

  std::shared_ptr<LinearKernels> kernels_;
  KeptOperand x_;
  WeightForm form_;
  bool column_major_ = false, for_weight_ = false, for_bias_ = false;
};

/// For the gradient of x; hands that of the result on to the other half. With kernels, and where x
/// is a GeLU that was recorded for them: for that of the sum before it.
class LinearBackward final : public Node {
 public:
  LinearBackward(const at::Tensor& x, const at::Tensor& weight, std::optional<GatheredAgain> again,
                 WeightForm form, std::shared_ptr<LinearKernels> kernels, const NodePtr& others)
      : kernels_(std::move(kernels)), form_(form) {
    if (x.requires_grad()) {
      weight_ = KeptOperand(weight, std::move(again));
      for_x_ = true;
      add_next_edge(torch::autograd::impl::gradient_edge(x));
      if (kernels_) gelu_ = gelu_node_of(x);
      if (gelu_) add_next_edge(gelu_->next_edge(0));
    }
    if (others) add_next_edge({others, 0});
    hands_on_ = others != nullptr;
  }

  std::string name() const override { return "OsloLinearBackward"; }

  variable_list apply(variable_list&& gradients) override {
    variable_list outputs(num_outputs());
    at::Tensor gradient = std::move(gradients[0]);
    if (!gradient.defined()) return outputs;
    if (for_x_ && task_should_compute_output(0)) {
      // What the GeLU saved is used on its stream.
      if (gelu_ && !c10::GradMode::is_enabled() && only_passes_gelu() &&
          gelu_->stream() == stream()) {
        outputs[1] = gradient_before_gelu(gradient);
      } else {
        outputs[0] = input_gradient(gradient);
      }
    }
    if (hands_on_) outputs.back() = std::move(gradient);
    return outputs;
  }

  void release_variables() override { weight_.reset(); }

 private:
  /// (N, K)
  at::Tensor output_first_weight() {
    const at::Tensor weight = weight_.unpack(getptr());
    return form_ == WeightForm::output_first ? weight : weight.t();
  }

  at::Tensor input_gradient(const at::Tensor& gradient) {
    const at::Tensor rows = as_matrix(gradient).mm(output_first_weight());
    if (gradient.dim() == 2) return rows;
    auto sizes = gradient.sizes().vec();
    sizes.back() = rows.size(1);
    return rows.view(sizes);
  }

  /// Whether nobody looks at the gradients of the GeLU and of what it is in another shape.
  bool only_passes_gelu() {
    Node* node = next_edge(0).function.get();
    for (; node != gelu_.get(); node = node->next_edge(0).function.get()) {
      if (!only_passes(*node)) return false;
    }
    return only_passes(*node);
  }

  at::Tensor gradient_before_gelu(const at::Tensor& gradient) {
    const at::Tensor sum = gelu_->sum(), weight = output_first_weight();
    return kernels_
        ->product_and_gelu_backward(as_matrix(gradient), weight, sum.reshape({-1, weight.size(1)}))
        .view(sum.sizes());
  }

  std::shared_ptr<LinearKernels> kernels_;
  NodeHandle<GeluNode> gelu_;
  KeptOperand weight_;
  WeightForm form_;
  bool for_x_ = false, hands_on_ = false;
};

bool is_dense(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && at::isFloatingType(tensor.scalar_type()) &&
         !tensor.is_mkldnn();
}

bool wants_gradient(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad();
}

/// Whether the gradient of `tensor` goes to a marked parameter, by way of nodes that save nothing
/// at most: these may then run in both halves. (A marked tensor that stages' values were written
/// into has a history of other nodes, which the input half goes on through.)
bool leads_to_parameter(const at::Tensor& tensor) {
  if (!wants_gradient(tensor)) return true;
  for (NodePtr node = tensor.grad_fn(); node; node = node->next_edge(0).function) {
    const auto* const half = dynamic_cast<WeightHalfNode*>(node.get());
    if (half != nullptr && half->is_held()) return true;
    const std::string name = node->name();
    // OsloUnmark without being held is that of a cast or transposed parameter.
    if (name != "TBackward0" && name != "TransposeBackward0" && name != "ToCopyBackward0" &&
        name != "AliasBackward0" && name != "OsloUnmark") {
      return false;
    }
  }
  return false;
}

}  // namespace

at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          WeightForm form, KernelFusion* fusion, ProductAgain again) {
  const bool for_x = wants_gradient(x);
  const bool for_weights = wants_gradient(weight) || wants_gradient(bias);
  const bool plain = weight.dim() == 2 && x.dim() >= 1 && is_dense(x) && is_dense(weight) &&
                     (!bias.defined() || (bias.dim() == 1 && is_dense(bias)));
  if (fusion != nullptr && !kernels_take(x, weight, bias)) fusion = nullptr;
  const auto value = [&] {
    return fusion != nullptr ? fused_product(*fusion, x, weight, bias, form)
                             : product(x, weight, bias, form);
  };
  if (!c10::GradMode::is_enabled() || !(for_x || for_weights) || !plain) return value();
  at::Tensor y;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    y = value();
  }
  const std::shared_ptr<LinearKernels> kernels = fusion != nullptr ? fusion->kernels() : nullptr;
  NodeHandle<LinearWeightBackward> weights;
  if (for_weights) {
    weights = make_node<LinearWeightBackward>(x, std::move(again.x), weight, bias, form, kernels);
  }
  const auto& split = SplitBackward::current();
  if (!for_x && !split) {
    torch::autograd::set_history(y, weights);
    return y;
  }
  if (weights) {
    weights->add_input_metadata(y);
    if (split && leads_to_parameter(weight) && leads_to_parameter(bias)) {
      weights->belong_to(split);
    } else if (const auto between = start_in_backward(x)) {
      weights->set_sequence_nr(*between);
    }
  }
  torch::autograd::set_history(
      y, make_node<LinearBackward>(x, weight, std::move(again.weight), form, kernels, weights));
  return y;
}

}  // namespace oslo
