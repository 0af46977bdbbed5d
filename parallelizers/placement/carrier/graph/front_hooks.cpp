// Where LibTorch asks for a placed tensor's place in the graph its front is made or renewed first,
// and its hooks and retained gradient are asked of its local tensor. LibTorch's own table answers.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/libtorch/variable_hooks.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/graph/set_data.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/weight_casts.h"
#include "parallelizers/placement/layout/sharded_weight.h"

namespace oslo {
namespace {

class FrontHooks final : public VariableHooks {
 public:
  const NodePtr& grad_fn(const TensorBase& self) const override {
    return VariableHooks::grad_fn(complete(self));
  }
  TensorBase variable_data(const TensorBase& self) const override {
    TensorBase data = VariableHooks::variable_data(self);
    count_writes(data, self);
    return data;
  }
  bool is_leaf(const TensorBase& self) const override {
    const GraphPlace* const place = place_of(self);
    const bool pending = place != nullptr && place->state() == GraphPlace::State::pending;
    return !pending && VariableHooks::is_leaf(self);
  }
  int64_t output_nr(const TensorBase& self) const override {
    return VariableHooks::output_nr(complete(self));
  }
  void set_grad_dtype(const TensorBase& self,
                      const std::optional<c10::ScalarType>& dtype) const override {
    VariableHooks::set_grad_dtype(complete(self), dtype);
  }
  unsigned _register_hook(const TensorBase& self, Hook hook) const override {
    const Tensor* const local = watched(self);
    if (local == nullptr) return VariableHooks::_register_hook(self, std::move(hook));
    return VariableHooks::_register_hook(*local, on_local(std::move(hook), layout_of(self)));
  }
  void remove_hook(const TensorBase& self, unsigned position) const override {
    const Tensor* const local = watched(self);
    VariableHooks::remove_hook(local != nullptr ? *local : self, position);
  }
  void retain_grad(const TensorBase& self) const override {
    if (watched(self) == nullptr) return VariableHooks::retain_grad(self);
    place_of(self)->retain_gradient();
  }
  bool retains_grad(const TensorBase& self) const override {
    const Tensor* const local = watched(self);
    return VariableHooks::retains_grad(local != nullptr ? *local : self);
  }
  void requires_grad_(const TensorBase& self, bool requires_grad) const override {
    VariableHooks::requires_grad_(complete(self), requires_grad);
  }
  void set_data(const TensorBase& self, const TensorBase& data) const override {
    const std::optional<Tensor> taken =
        data_to_take(*at::OptionalTensorRef(self), *at::OptionalTensorRef(data));
    if (!taken) return;
    const std::optional<c10::ScalarType> gradients = grad_dtype(self);
    VariableHooks::set_data(self, *taken);
    keep_gradients_wide(self, gradients);
  }
  void _backward(const Tensor& self, at::TensorList inputs, const std::optional<Tensor>& gradient,
                 std::optional<bool> retain_graph, bool create_graph) const override {
    refuse_of_stage(self);
    VariableHooks::_backward(self, inputs, gradient, retain_graph, create_graph);
  }

 private:
  /// A parameter that gets a wider type than was set for its gradients, `before`, has them in that.
  void keep_gradients_wide(const TensorBase& self, std::optional<c10::ScalarType> before) const {
    if (!before || !self.is_floating_point() || grad_dtype(self) != before) return;
    if (c10::elementSize(self.scalar_type()) <= c10::elementSize(*before)) return;
    unset_gradient_type(*at::OptionalTensorRef(self));
  }

  /// Of a parameter that casts are kept of.
  static void count_writes(const TensorBase& data, const TensorBase& self) {
    if (!self.defined() || !self.key_set().has(kPlacedKey)) return;
    const at::OptionalTensorRef held(self);
    const Tensor& tensor = *held;
    const Mark* const mark = placed_impl(tensor) != nullptr ? nullptr : mark_of(tensor);
    if (mark != nullptr && mark->sharded) mark->sharded->count_writes_of(Tensor(data));
    if (mark == nullptr || !mark->layout->followed()) return;
    WeightCasts* const casts = mark->layout->context()->weight_casts.get();
    if (casts != nullptr) casts->count_writes_of(Tensor(data), tensor);
  }

  static const PlacedTensorImpl* placed(const TensorBase& self) {
    if (!self.defined() || !self.key_set().has(kPlacedKey)) return nullptr;
    return placed_impl(*at::OptionalTensorRef(self));
  }

  /// Each stage has its part of the graph, and none leads to what others hold.
  static void refuse_of_stage(const TensorBase& self) {
    const PlacedTensorImpl* const impl = placed(self);
    const LayoutPtr layout = impl != nullptr ? impl->layout() : nullptr;
    OSLO_CHECK(!layout || !layout->resident() || !layout->context()->pipeline(),
               "backward() on a value that pipeline ", layout ? layout->stages().to_string() : "",
               " holds; the passes of a pipeline are run by oslo::PipelineSchedule: give its "
               "forward_backward_step the function that computes the loss");
  }

  static GraphPlace* place_of(const TensorBase& self) {
    const PlacedTensorImpl* const impl = placed(self);
    return impl != nullptr ? GraphPlace::find(*impl) : nullptr;
  }

  static const TensorBase& complete(const TensorBase& self) {
    if (GraphPlace* const place = place_of(self)) place->settle();
    return self;
  }

  static const Tensor* watched(const TensorBase& self) {
    GraphPlace* const place = place_of(self);
    return place != nullptr ? place->watched_local() : nullptr;
  }

  static LayoutPtr layout_of(const TensorBase& self) {
    return ended_layout(placed(self)->unfinished());
  }

  /// The hook of a placed tensor as one of its local tensor.
  static Hook on_local(Hook hook, LayoutPtr layout) {
    return [hook = std::move(hook), layout = std::move(layout)](const TensorBase& part) {
      if (!part.defined()) return hook(part);
      Tensor changed(hook(wrap({Tensor(part), layout})));
      if (!changed.defined()) return TensorBase();
      return TensorBase(local_in(std::move(changed), layout));
    };
  }
};

const FrontHooks hooks;

}  // namespace
}  // namespace oslo
