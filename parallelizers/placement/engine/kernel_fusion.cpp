#include "parallelizers/placement/engine/kernel_fusion.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <utility>

#include "parallelizers/placement/operators/fused_run.h"

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

bool FusedSum::is_sum(const at::Tensor& tensor) const {
  // Tensors of inference mode count no writes; a view may have a counter of its own.
  return !tensor.is_inference() && writes.enabled() && writes.current_version() == version &&
         tensor._version() == version &&
         tensor.storage().unsafeGetStorageImpl() == sum._unsafe_get_target() &&
         tensor.storage_offset() == 0 && tensor.is_contiguous() && tensor.numel() == elements &&
         tensor.scalar_type() == type;
}

at::Tensor FusedSum::activation_in(at::IntArrayRef sizes) const {
  const at::AutoDispatchBelowADInplaceOrView below;  // a GeLU's result is no view
  return activation.view(sizes);
}

bool KernelFusion::gelu_follows(const at::Tensor& weight) {
  FusedRun* const run = FusedRun::current();
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool follows = noted_.contains(weight.storage().unsafeGetStorageImpl());
  return run == nullptr ? follows : run->choose(follows && !run->alone());
}

void KernelFusion::computed(const at::Tensor& sum, const at::Tensor& weight,
                            at::Tensor activation) {
  using WeakStorage = FusedSum::WeakStorage;
  FusedRun* const run = FusedRun::current();
  const auto& writes = sum.unsafeGetTensorImpl()->version_counter();
  auto last = std::make_shared<FusedSum>(
      FusedSum{WeakStorage(sum.storage().getWeakStorageImpl()), sum.numel(), sum.scalar_type(),
               writes, writes.enabled() ? writes.current_version() : 0,
               WeakStorage(weight.storage().getWeakStorageImpl()), std::move(activation),
               run != nullptr ? run->weak_from_this() : std::weak_ptr<const FusedRun>()});
  if (run != nullptr && run->again()) {
    run->last = std::move(last);
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (last_ && last_->activation.defined()) noted_.erase(last_->weight._unsafe_get_target());
  last_ = std::move(last);
}

at::Tensor KernelFusion::take_gelu(const at::Tensor& sum) {
  FusedRun* const run = FusedRun::current();
  if (run != nullptr && run->again()) {
    if (!run->choose(false) || !run->last || !run->last->is_sum(sum)) return {};
    return std::exchange(run->last, nullptr)->activation_in(sum.sizes());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool meets =
      last_ && last_->is_sum(sum) && (run == nullptr || last_->run.lock().get() == run);
  const bool takes = meets && last_->activation.defined();
  if (run != nullptr) run->choose(takes);
  if (!meets) return {};
  const std::shared_ptr<FusedSum> last = std::move(last_);
  if (takes) return last->activation_in(sum.sizes());
  std::erase_if(noted_, [](const auto& note) { return note.second.expired(); });
  noted_.emplace(last->weight._unsafe_get_target(), last->weight);
  return {};
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
