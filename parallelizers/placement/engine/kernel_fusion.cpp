#include "parallelizers/placement/engine/kernel_fusion.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace oslo {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

class RecordedGelu final : public GeluNode {
 public:
  explicit RecordedGelu(const at::Tensor& sum) : sum_(sum, /*is_output=*/false) {}

  std::string name() const override { return "OsloGelu"; }

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    return {at::gelu_backward(gradients[0], sum_.unpack(), "tanh")};
  }

  void release_variables() override { sum_.reset_data(); }

  at::Tensor sum() override { return sum_.unpack(); }

 private:
  SavedVariable sum_;
};

}  // namespace

bool KernelFusion::Last::is_sum(const at::Tensor& tensor) const {
  // Tensors of inference mode count no writes; a view may have a counter of its own.
  return !tensor.is_inference() && writes.enabled() && writes.current_version() == version &&
         tensor._version() == version &&
         tensor.storage().unsafeGetStorageImpl() == sum._unsafe_get_target() &&
         tensor.storage_offset() == 0 && tensor.is_contiguous() && tensor.numel() == elements &&
         tensor.scalar_type() == type;
}

bool KernelFusion::gelu_follows(const at::Tensor& weight) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return noted_.contains(weight.storage().unsafeGetStorageImpl());
}

void KernelFusion::computed(const at::Tensor& sum, const at::Tensor& weight,
                            at::Tensor activation) {
  const auto& writes = sum.unsafeGetTensorImpl()->version_counter();
  auto last = std::make_unique<Last>(
      Last{WeakStorage(sum.storage().getWeakStorageImpl()), sum.numel(), sum.scalar_type(), writes,
           writes.enabled() ? writes.current_version() : 0,
           WeakStorage(weight.storage().getWeakStorageImpl()), std::move(activation)});
  const std::lock_guard<std::mutex> lock(mutex_);
  if (last_ && last_->activation.defined()) noted_.erase(last_->weight._unsafe_get_target());
  last_ = std::move(last);
}

at::Tensor KernelFusion::take_gelu(const at::Tensor& sum) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!last_ || !last_->is_sum(sum)) return {};
  const std::unique_ptr<Last> last = std::move(last_);
  if (!last->activation.defined()) {
    std::erase_if(noted_, [](const auto& note) { return note.second.expired(); });
    noted_.emplace(last->weight._unsafe_get_target(), last->weight);
    return {};
  }
  const at::AutoDispatchBelowADInplaceOrView below;  // a GeLU's result is no view
  return last->activation.view(sum.sizes());
}

at::Tensor recorded_gelu(const at::Tensor& sum, at::Tensor activation) {
  if (!c10::GradMode::is_enabled() || !sum.requires_grad()) return activation;
  const auto node = make_node<RecordedGelu>(sum);
  node->add_next_edge(torch::autograd::impl::gradient_edge(sum));
  torch::autograd::set_history(activation, node);
  return activation;
}

NodeHandle<GeluNode> gelu_node_of(const at::Tensor& activation) {
  using torch::autograd::generated::ViewBackward0;
  NodePtr node = activation.grad_fn();
  while (dynamic_cast<ViewBackward0*>(node.get()) != nullptr) node = node->next_edge(0).function;
  return node_cast<GeluNode>(node);
}

}  // namespace oslo
