#pragma once

#include <ATen/core/VariableHooksInterface.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "mpu/base/node_ptr.h"

namespace oslo {

/// What LibTorch asks of a tensor's place in the graph (`grad_fn()`, `is_leaf()`, hooks, `data()`)
/// it asks through one table of functions a process. An object of this class stands before
/// LibTorch's own for as long as it lives and hands everything on to it; who derives answers some
/// questions otherwise. Made when the library is loaded, which is after LibTorch's own, to which it
/// is linked. All members of the table are pure: one that a later LibTorch adds does not compile
/// here.
class VariableHooks : public at::impl::VariableHooksInterface {
 public:
  using Tensor = at::Tensor;
  using TensorBase = at::TensorBase;
  using Hook = std::function<TensorBase(const TensorBase&)>;

  VariableHooks() : torch_(at::impl::GetVariableHooks()) { at::impl::SetVariableHooks(this); }
  ~VariableHooks() override {
    if (at::impl::GetVariableHooks() == this) at::impl::SetVariableHooks(torch_);
  }
  VariableHooks(const VariableHooks&) = delete;
  VariableHooks& operator=(const VariableHooks&) = delete;

  TensorBase tensor_data(const TensorBase& self) const override {
    return torch_->tensor_data(self);
  }
  TensorBase variable_data(const TensorBase& self) const override {
    return torch_->variable_data(self);
  }
  const NodePtr& grad_fn(const TensorBase& self) const override { return torch_->grad_fn(self); }
  unsigned _register_hook(const TensorBase& self, Hook hook) const override {
    return torch_->_register_hook(self, std::move(hook));
  }
  void remove_hook(const TensorBase& self, unsigned position) const override {
    torch_->remove_hook(self, position);
  }
  bool is_view(const TensorBase& self) const override { return torch_->is_view(self); }
  const TensorBase& base(const TensorBase& self) const override { return torch_->base(self); }
  const std::string& name(const TensorBase& self) const override { return torch_->name(self); }
  bool is_leaf(const TensorBase& self) const override { return torch_->is_leaf(self); }
  int64_t output_nr(const TensorBase& self) const override { return torch_->output_nr(self); }
  void set_data(const TensorBase& self, const TensorBase& data) const override {
    torch_->set_data(self, data);
  }
  TensorBase data(const TensorBase& self) const override { return torch_->data(self); }
  int64_t _version(const TensorBase& self) const override { return torch_->_version(self); }
  void retain_grad(const TensorBase& self) const override { torch_->retain_grad(self); }
  bool retains_grad(const TensorBase& self) const override { return torch_->retains_grad(self); }
  void _backward(const Tensor& self, at::TensorList inputs, const std::optional<Tensor>& gradient,
                 std::optional<bool> keep_graph, bool create_graph) const override {
    torch_->_backward(self, inputs, gradient, keep_graph, create_graph);
  }
  void requires_grad_(const TensorBase& self, bool requires_grad) const override {
    torch_->requires_grad_(self, requires_grad);
  }
  void basic_autograd_not_implemented_fallback(const c10::OperatorHandle& op,
                                               c10::DispatchKeySet keys,
                                               torch::jit::Stack* stack) const override {
    torch_->basic_autograd_not_implemented_fallback(op, keys, stack);
  }
  std::optional<c10::ScalarType> grad_dtype(const TensorBase& self) const override {
    return torch_->grad_dtype(self);
  }
  void set_grad_dtype(const TensorBase& self,
                      const std::optional<c10::ScalarType>& dtype) const override {
    torch_->set_grad_dtype(self, dtype);
  }

 private:
  at::impl::VariableHooksInterface* torch_;
};

}  // namespace oslo
