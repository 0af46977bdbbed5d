#include "parallelizers/data/exchange/stand_ins.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

at::Tensor stand_in(const at::Tensor& parameter, const NodePtr& accumulator) {
  const c10::ScalarType type = gradient_type(parameter);
  const c10::Device device = parameter.device();
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, at::DataPtr(nullptr, device));
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::computeDispatchKey(type, c10::kStrided, device)),
      c10::scalarTypeToTypeMeta(type));
  impl->set_sizes_and_strides(parameter.sizes(), parameter.strides());
  at::Tensor made(std::move(impl));
  made.set_requires_grad(true);
  torch::autograd::impl::set_grad_accumulator(made, WeakNodePtr(accumulator));
  return made;
}

}  // namespace

StandIns::StandIns(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {
  for (const at::Tensor& parameter : parameters) {
    if (gradient_type(parameter) == parameter.scalar_type()) {
      tensors_.push_back(parameter);
      continue;
    }
    accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameter));
    tensors_.push_back(stand_in(parameter, accumulators_.back()));
    index_[tensors_.back().unsafeGetTensorImpl()] = tensors_.size() - 1;
  }
  hand_out();
}

std::vector<at::Tensor> StandIns::parameters_of(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> parameters = tensors;
  for (at::Tensor& each : parameters) {
    const auto found = index_.find(each.unsafeGetTensorImpl());
    if (found != index_.end()) each = parameters_[found->second];
  }
  return parameters;
}

void StandIns::hand_out() {
  for (const auto& [_, index] : index_) hand_out(index);
}

void StandIns::hand_out(size_t index) {
  if (!stands_in(index)) return;
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  at::Tensor& gradient = parameters_[index].mutable_grad();
  at::Tensor& seen = tensors_[index].mutable_grad();
  seen.reset();
  if (!gradient.defined()) return;
  // What the program assigned itself may be of the parameter's type.
  if (gradient.scalar_type() != tensors_[index].scalar_type()) {
    gradient = unmarked_alias(gradient).to(tensors_[index].scalar_type());
  }
  seen = unmarked_alias(gradient);
}

void StandIns::take_back(size_t index) {
  if (!stands_in(index)) return;
  const at::Tensor& seen = tensors_[index].grad();
  at::Tensor& gradient = parameters_[index].mutable_grad();
  if (!seen.defined() || (gradient.defined() && gradient.is_alias_of(seen))) return;
  gradient = unmarked_alias(seen);
}

}  // namespace oslo
