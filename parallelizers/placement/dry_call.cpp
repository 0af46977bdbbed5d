#include "parallelizers/placement/dry_call.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <new>
#include <sstream>

#include "parallelizers/placement/key.h"
#include "parallelizers/placement/mark.h"
#include "parallelizers/placement/placed_tensor.h"

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

void mix(uint64_t& digest, uint64_t value) {
  digest = (digest ^ value) * 0x9E3779B97F4A7C15ull;
  digest ^= digest >> 29;
}

c10::SmallVector<int64_t, 6> global_sizes(const at::Tensor& tensor) {
  if (const Mark* mark = mark_of(tensor)) return mark->layout->global_sizes(tensor.sizes());
  return {tensor.sizes().begin(), tensor.sizes().end()};
}

void mix(uint64_t& digest, const c10::IValue& argument) {
  if (argument.isTensor()) {
    if (!argument.toTensor().defined()) return;
    for (const int64_t size : global_sizes(argument.toTensor())) mix(digest, size + 1);
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) mix(digest, element);
  } else if (argument.isInt()) {
    mix(digest, static_cast<uint64_t>(argument.toInt()));
  } else if (argument.isDouble()) {
    mix(digest, std::bit_cast<uint64_t>(argument.toDouble()));
  } else if (argument.isBool()) {
    mix(digest, argument.toBool() ? 1 : 2);
  }
}

bool gives_tensors(const OperatorEntry& op) {
  const auto& returns = op.schema->returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
           result.type()->kind() == c10::TypeKind::ListType;
  });
}

/// Content for an operator that needs some: zeros. One whose results have as many rows as values
/// decide (nonzero, a mask as an index) gets what makes them the most: everything counts once. So
/// do masks in general; a mask that is read itself is false.
void imagine_values(const OperatorEntry& op, std::vector<c10::IValue>& arguments) {
  // istft insists on a window that is not empty.
  const bool decides = op.handle.hasTag(at::Tag::dynamic_output_shape) || op.name == "aten::istft";
  for (c10::IValue& argument : arguments) {
    if (argument.isDevice()) argument = c10::Device(at::kCPU);
    const bool counts = decides && argument.isTensor() && op.name != "aten::index.Tensor";
    std::vector<c10::IValue> one{argument};
    change_tensors(one, [&](const at::Tensor& shape) {
      at::Tensor content = zeros_of(shape);
      if (counts) return content.fill_(1);
      return gives_tensors(op) ? content : content.zero_();
    });
    argument = std::move(one.front());
  }
}

/// Packed sequences: their lengths are read on the way to the other shapes. All as long as the
/// longest.
void imagine_lengths(const OperatorEntry& op, std::vector<c10::IValue>& arguments) {
  static constexpr std::array kPacked{"aten::_pad_packed_sequence", "aten::lstm.data",
                                      "aten::gru.data", "aten::rnn_tanh.data",
                                      "aten::rnn_relu.data"};
  const bool packs = op.name == "aten::_pack_padded_sequence";
  if (!packs && std::find(kPacked.begin(), kPacked.end(), op.name) == kPacked.end()) return;
  const at::Tensor data = arguments[0].toTensor(), shape = arguments[1].toTensor();
  const bool batch_first = packs && arguments[2].toBool();
  const int64_t steps = std::max<int64_t>(1, shape.numel());
  const int64_t each = packs ? data.size(batch_first ? 1 : 0) : data.size(0) / steps;
  arguments[1] = at::full(shape.sizes(), each, shape.options().device(at::kCPU));
}

}  // namespace

DryNote::DryNote(DryShapes* shapes, const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments)
    : shapes_(shapes) {
  if (shapes_ == nullptr || shapes_->depth++ > 0) return;
  mix(shapes_->calls, reinterpret_cast<uintptr_t>(op.schema));
  for (const c10::IValue& argument : arguments) mix(shapes_->calls, argument);
}

DryShapes* dry_shapes_of(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isList()) {
      if (DryShapes* shapes = dry_shapes_of(argument.toListRef())) return shapes;
    }
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const at::Tensor& tensor = argument.toTensor();
    if (const PlacedTensorImpl* impl = placed_impl(tensor)) {
      return impl->value().layout->mesh()->dry.get();
    }
    if (const Mark* mark = mark_of(tensor)) return mark->layout->mesh()->dry.get();
  }
  return nullptr;
}

at::Tensor shape_of(const at::Tensor& tensor) {
  if (tensor.is_meta()) return tensor;
  at::Tensor shape = at::empty_strided(tensor.sizes(), tensor.strides(),
                                       tensor.options().device(at::kMeta).requires_grad(false));
  return tensor.requires_grad() ? differentiable(shape, tensor.is_leaf()) : shape;
}

at::Tensor zeros_of(const at::Tensor& shape) {
  // Kernels trust the strides (and a contiguous argument to be so), so that the zeros have them.
  const size_t bytes = std::max<size_t>(
      1, at::detail::computeStorageNbytes(shape.sizes(), shape.strides(), shape.element_size()));
  void* memory = std::calloc(bytes, 1);
  if (memory == nullptr) throw std::bad_alloc();
  at::Tensor zeros = at::from_blob(memory, shape.sizes(), shape.strides(), std::free,
                                   shape.options().device(at::kCPU).requires_grad(false));
  if (shape.scalar_type() == at::kBool) zeros.fill_(true);
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
    imagine_lengths(op, results);
    op.handle.callBoxed(&results);
    return results;
  } catch (const c10::NotImplementedError&) {
    results = arguments;
  }
  if (op.in_place) return {arguments[0]};
  {
    const c10::AutoGradMode no_grad(false);
    imagine_values(op, results);
    op.handle.callBoxed(&results);
    if (gives_tensors(op)) {
      change_tensors(results, shape_of);
    } else {
      shapes.value_readers.push_back(op.name);
    }
  }
  shapes.known.emplace(key, results);
  return fresh(results, requires_grad);
}

}  // namespace oslo
