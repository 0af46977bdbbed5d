#include "parallelizers/placement/dry_call.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <sstream>

#include "parallelizers/placement/key.h"

namespace oslo {
namespace {

/// Every tensor among `values`, inside lists too, replaced by what `change` makes of it.
template <typename Change>
void change_tensors(std::vector<c10::IValue>& values, const Change& change) {
  for (c10::IValue& value : values) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) value = change(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list = value.toTensorVector();
      for (at::Tensor& tensor : list) {
        if (tensor.defined()) tensor = change(tensor);
      }
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor && tensor->defined() ? std::optional(change(*tensor)) : std::nullopt);
      }
      value = std::move(list);
    }
  }
}

/// The operator and all that decides its results' shapes.
std::string signature(const OperatorEntry& op, const std::vector<c10::IValue>& arguments) {
  std::ostringstream text;
  text << op.name;
  auto described = arguments;
  change_tensors(described, [&](const at::Tensor& tensor) {
    text << '|' << tensor.scalar_type() << tensor.sizes() << tensor.strides();
    return at::Tensor();
  });
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator() || argument.isTensor() || argument.isTensorList() ||
        argument.isOptionalTensorList()) {
      continue;
    }
    text << '|' << argument;
  }
  return text.str();
}

/// The shape as one that gradients flow to. What an operator returned may be written in place,
/// which a leaf may not.
at::Tensor differentiable(const at::Tensor& shape, bool leaf) {
  if (!c10::GradMode::is_enabled()) return shape;
  shape.set_requires_grad(true);
  return leaf ? shape : shape.clone();
}

/// New shapes like the remembered ones, differentiable where an argument is.
std::vector<c10::IValue> fresh(std::vector<c10::IValue> results, bool requires_grad) {
  change_tensors(results, [&](const at::Tensor& shape) {
    at::Tensor tensor = at::empty_strided(shape.sizes(), shape.strides(), shape.options());
    const bool records = requires_grad && tensor.is_floating_point();
    return records ? differentiable(tensor, /*leaf=*/false) : tensor;
  });
  return results;
}

}  // namespace

at::Tensor shape_of(const at::Tensor& tensor) {
  if (tensor.is_meta()) return tensor;
  at::Tensor shape = at::empty_strided(tensor.sizes(), tensor.strides(),
                                       tensor.options().device(at::kMeta).requires_grad(false));
  return tensor.requires_grad() ? differentiable(shape, tensor.is_leaf()) : shape;
}

at::Tensor zeros_of(const at::Tensor& shape) {
  const auto options = shape.options().device(at::kCPU).requires_grad(false);
  at::Tensor zeros = at::zeros({}, options).expand(shape.sizes());
  if (c10::GradMode::is_enabled()) zeros.set_requires_grad(shape.requires_grad());
  return zeros;
}

std::vector<c10::IValue> call_on_shapes(const OperatorEntry& op, std::vector<c10::IValue> arguments,
                                        DryShapes& shapes) {
  const BelowDoor below;
  change_tensors(arguments, shape_of);
  for (c10::IValue& argument : arguments) {
    if (argument.isDevice()) argument = c10::Device(at::kMeta);
  }
  bool requires_grad = false;
  if (c10::GradMode::is_enabled()) {
    change_tensors(arguments, [&](const at::Tensor& tensor) {
      requires_grad |= tensor.requires_grad();
      return tensor;
    });
  }
  const std::string key = signature(op, arguments);
  if (const auto found = shapes.known.find(key); found != shapes.known.end()) {
    return fresh(found->second, requires_grad);
  }
  auto results = arguments;
  try {
    op.handle.callBoxed(&results);
    return results;
  } catch (const c10::NotImplementedError&) {
    results = arguments;
  }
  if (op.in_place) return {arguments[0]};
  {
    const c10::AutoGradMode no_grad(false);
    change_tensors(results, zeros_of);
    for (c10::IValue& argument : results) {
      if (argument.isDevice()) argument = c10::Device(at::kCPU);
    }
    op.handle.callBoxed(&results);
    bool tensors = false;
    change_tensors(results, [&](const at::Tensor& tensor) {
      tensors = true;
      return shape_of(tensor);
    });
    if (!tensors) shapes.value_readers.push_back(op.name);
  }
  shapes.known.emplace(key, results);
  return fresh(results, requires_grad);
}

}  // namespace oslo
