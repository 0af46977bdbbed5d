#include "parallelizers/placement/engine/kernel_fusion.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>
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

/// Tensors of inference mode count no writes.
uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

}  // namespace

bool KernelFusion::gelu_follows(const at::Tensor& weight) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return noted_.contains(weight.storage().unsafeGetStorageImpl());
}

void KernelFusion::computed(const at::Tensor& sum, const at::Tensor& weight,
                            at::Tensor activation) {
  auto last = std::make_unique<Last>(Last{WeakTensor(sum.getIntrusivePtr()), version_of(sum),
                                          WeakStorage(weight.storage().getWeakStorageImpl()),
                                          std::move(activation)});
  const std::lock_guard<std::mutex> lock(mutex_);
  if (last_ && last_->activation.defined()) noted_.erase(last_->weight._unsafe_get_target());
  last_ = std::move(last);
}

at::Tensor KernelFusion::take_gelu(const at::Tensor& sum) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!last_ || last_->sum._unsafe_get_target() != sum.unsafeGetTensorImpl() ||
      last_->version != version_of(sum) || sum.is_inference()) {
    return {};
  }
  const std::unique_ptr<Last> last = std::move(last_);
  if (!last->activation.defined()) {
    std::erase_if(noted_, [](const auto& note) { return note.second.expired(); });
    noted_.emplace(last->weight._unsafe_get_target(), last->weight);
  }
  return last->activation;
}

at::Tensor recorded_gelu(const at::Tensor& sum, at::Tensor activation) {
  if (!c10::GradMode::is_enabled() || !sum.requires_grad()) return activation;
  const std::shared_ptr<Node> node(new RecordedGelu(sum), torch::autograd::deleteNode);
  node->add_next_edge(torch::autograd::impl::gradient_edge(sum));
  torch::autograd::set_history(activation, node);
  return activation;
}

std::shared_ptr<GeluNode> gelu_node_of(const at::Tensor& activation) {
  return std::dynamic_pointer_cast<GeluNode>(activation.grad_fn());
}

}  // namespace oslo
