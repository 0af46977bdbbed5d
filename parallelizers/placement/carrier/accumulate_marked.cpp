#include "parallelizers/placement/carrier/accumulate_marked.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "parallelizers/libtorch/tensor_tag.h"
#include "parallelizers/placement/carrier/part_storage.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/layout/sharded_weight.h"

namespace oslo {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::variable_list;

class AccumulateMarked final : public Node {
 public:
  AccumulateMarked(const at::Tensor& parameter, LayoutPtr layout, MarkOfGradient mark,
                   const std::shared_ptr<ShardedWeight>& sharded)
      : Node(/*sequence_nr=*/UINT64_MAX),  // as early as it can run, as AccumulateGrad does
        parameter_(parameter.getIntrusivePtr()),
        layout_(std::move(layout)),
        mark_(mark),
        sharded_(sharded) {
    const auto sizes = layout_->global_sizes(parameter.sizes());
    add_input_metadata(parameter.options(), c10::fromIntArrayRefSlow(sizes),
                       /*is_tensor_subclass=*/false, /*is_nested=*/false, parameter.grad_dtype());
  }

  std::string name() const override { return "OsloAccumulate"; }

  MarkOfGradient mark() const { return mark_; }

  bool is_for(const at::Tensor& tensor) const {
    return parameter_.lock().get() == tensor.unsafeGetTensorImpl();
  }

  at::Tensor parameter() const {
    auto impl = parameter_.lock();
    return impl ? at::Tensor(std::move(impl)) : at::Tensor();
  }

  variable_list apply(variable_list&& gradients) override {
    auto impl = parameter_.lock();
    if (!impl || !gradients[0].defined()) return {};
    if (!layout_->here()) return {};  // in the planner's runs: a shape
    const at::Tensor parameter(std::move(impl));
    if (!parameter.requires_grad()) return {};
    const auto sharded = is_of_one_replica(gradients[0]) ? sharded_.lock() : nullptr;
    at::Tensor local =
        sharded ? sharded->averaged(gradients[0]) : local_in(std::move(gradients[0]), layout_);
    if (!local.defined()) return {};
    // Zeros without memory (sgn's gradient) could not be averaged over ranks, nor added to.
    if (local._is_zerotensor()) local = local.clone();
    const std::lock_guard<std::mutex> lock(mutex_);
    at::Tensor& kept = parameter.mutable_grad();
    // What a user assigned, `p.mutable_grad() = p.grad() * 0.5`, is a value of the global shape.
    if (kept.defined() && placed_impl(kept)) kept = local_in(at::Tensor(kept), layout_);
    AccumulateGrad::accumulateGrad(parameter, kept, local, 1 + !post_hooks().empty(),
                                   [&kept](at::Tensor&& sum) { kept = std::move(sum); });
    mark_gradient_after_backward(parameter_);
    const auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameter);
    if (hook != nullptr) (*hook)(parameter);
    return {};
  }

  bool add(const std::function<void(const at::Tensor&)>& add) {
    auto impl = parameter_.lock();
    if (!impl) return false;
    const at::Tensor parameter(std::move(impl));
    const bool heard = !pre_hooks().empty() || !tensor_pre_hooks().empty() ||
                       !retains_grad_hooks().empty() || !post_hooks().empty() ||
                       torch::autograd::impl::post_acc_grad_hooks(parameter) != nullptr;
    if (heard || !parameter.requires_grad() || !on_current_stream()) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    const at::Tensor& kept = parameter.grad();
    const bool fits = kept.defined() && !placed_impl(kept) && kept.layout() == at::kStrided &&
                      kept.sizes() == parameter.sizes() && kept.device() == parameter.device() &&
                      !kept.requires_grad() && !kept.is_inference();
    if (!fits) return false;
    add(at::Tensor(implementation_over(kept, false)));
    kept.unsafeGetTensorImpl()->bump_version();
    mark_gradient_after_backward(parameter_);
    return true;
  }

  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& tensor_pre_hooks() noexcept
      override {
    const auto impl = parameter_.lock();
    return impl ? torch::autograd::impl::hooks(at::Tensor(impl)) : Node::tensor_pre_hooks();
  }

 private:
  /// Of a weight that replicas have parts of: whether the gradient has not come by its bucket,
  /// which averages it.
  bool is_of_one_replica(const at::Tensor& gradient) const {
    if (layout_->context()->replica_axis < 0) return false;
    const PlacedTensorImpl* const impl = placed_impl(gradient);
    return impl == nullptr || impl->layout()->context() != layout_->context();
  }

  /// Whether what runs now is ordered with what this node writes: the engine orders streams where
  /// it hands a gradient on, and here it hands on none.
  bool on_current_stream() {
    const auto own = stream();
    return !own || *own == c10::impl::VirtualGuardImpl(own->device_type()).getStream(own->device());
  }

  c10::weak_intrusive_ptr<c10::TensorImpl> parameter_;
  LayoutPtr layout_;
  MarkOfGradient mark_;
  std::weak_ptr<ShardedWeight> sharded_;  ///< whose bucket leads here
};

}  // namespace

NodePtr make_accumulator(const at::Tensor& parameter, const LayoutPtr& layout, MarkOfGradient mark,
                         const std::shared_ptr<ShardedWeight>& sharded) {
  return make_node<AccumulateMarked>(parameter, layout, mark, sharded);
}

bool takes_whole_gradients(const Node& node) {
  return dynamic_cast<const AccumulateMarked*>(&node) != nullptr;
}

bool accumulates_for(const Node& node, const at::Tensor& tensor) {
  const auto* accumulate = dynamic_cast<const AccumulateMarked*>(&node);
  return accumulate != nullptr && accumulate->is_for(tensor);
}

at::Tensor accumulated_parameter(const Node& node) {
  const auto* accumulate = dynamic_cast<const AccumulateMarked*>(&node);
  return accumulate != nullptr ? accumulate->parameter() : at::Tensor();
}

bool add_to_gradient(Node& node, const std::function<void(const at::Tensor& gradient)>& add) {
  auto* accumulate = dynamic_cast<AccumulateMarked*>(&node);
  return accumulate != nullptr && accumulate->add(add);
}

void mark_gradient(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (gradient.key_set().has(kPlacedKey) || gradient.is_sparse()) return;
  auto* impl = gradient.unsafeGetTensorImpl();
  auto marked = implementation_over(gradient, true);
  const NodePtr node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  const auto* const own = dynamic_cast<const AccumulateMarked*>(node.get());
  if (own != nullptr && own->mark() != nullptr) {
    own->mark()(*marked, parameter);
  } else {
    copy_tag(*parameter.unsafeGetTensorImpl(), *marked);
  }
  marked->set_version_counter(impl->version_counter());
  impl->shallow_copy_from(marked);
}

namespace {

/// Marks a parameter's gradient when it is called, or else, after a pass that threw, when the pass
/// lets go of it.
class MarksGradient {
 public:
  explicit MarksGradient(c10::weak_intrusive_ptr<c10::TensorImpl> parameter)
      : parameter_(std::move(parameter)) {}
  ~MarksGradient() {
    try {
      run();
    } catch (const std::exception&) {  // what the pass threw is on its way
    }
  }
  MarksGradient(const MarksGradient&) = delete;
  MarksGradient& operator=(const MarksGradient&) = delete;

  void run() {
    if (std::exchange(done_, true)) return;
    auto impl = parameter_.lock();
    if (!impl) return;
    const at::Tensor parameter(std::move(impl));
    if (!parameter.is_leaf() && !parameter.retains_grad()) return;  // a clone of a parameter
    if (parameter.grad().defined()) mark_gradient(parameter.grad(), parameter);
  }

 private:
  const c10::weak_intrusive_ptr<c10::TensorImpl> parameter_;
  bool done_ = false;
};

}  // namespace

void mark_gradient_after_backward(c10::weak_intrusive_ptr<c10::TensorImpl> parameter) {
  torch::autograd::Engine::get_default_engine().queue_callback(
      [marks = std::make_shared<MarksGradient>(std::move(parameter))] { marks->run(); });
}

}  // namespace oslo
