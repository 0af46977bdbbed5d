#include "parallelizers/placement/engine/dry_call.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <exception>
#include <new>
#include <sstream>

#include "mpu/digest.h"
#include "mpu/error.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/key.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

/// All that decides the shapes of an operator's results.
std::string signature(const std::vector<c10::IValue>& arguments) {
  std::ostringstream text;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    text << '|' << tensor.scalar_type() << tensor.sizes() << tensor.strides();
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
std::vector<c10::IValue> fresh(const std::vector<c10::IValue>& results, bool requires_grad) {
  return with_tensors(results, [&](const at::Tensor& shape) {
    at::Tensor tensor = at::empty_strided(shape.sizes(), shape.strides(), shape.options());
    const bool records = requires_grad && tensor.is_floating_point();
    return records ? differentiable(tensor, /*leaf=*/false) : tensor;
  });
}

c10::SmallVector<int64_t, 6> global_sizes(const at::Tensor& tensor) {
  if (const Mark* mark = mark_of(tensor)) return mark->layout->global_sizes(tensor.sizes());
  return {tensor.sizes().begin(), tensor.sizes().end()};
}

uint64_t take_in(uint64_t digest, const c10::IValue& argument) {
  if (argument.isTensor()) {
    if (!argument.toTensor().defined()) return digest;
    for (const int64_t size : global_sizes(argument.toTensor())) {
      digest = mix(digest, static_cast<uint64_t>(size + 1));
    }
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) digest = take_in(digest, element);
  } else if (argument.isInt()) {
    digest = mix(digest, static_cast<uint64_t>(argument.toInt()));
  } else if (argument.isDouble()) {
    digest = mix(digest, std::bit_cast<uint64_t>(argument.toDouble()));
  } else if (argument.isBool()) {
    digest = mix(digest, argument.toBool() ? uint64_t{1} : uint64_t{2});
  }
  return digest;
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
    argument = with_tensors_in(argument, [&](const at::Tensor& shape) {
      at::Tensor content = zeros_of(shape);
      if (counts) return content.fill_(1);
      return gives_tensors(op) ? content : content.zero_();
    });
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

void remember(DryShapes& shapes, const at::Tensor& target) {
  const at::Tensor root = target.is_view() ? at::Tensor(target._base()) : target;
  const c10::StorageImpl* storage = root.storage().unsafeGetStorageImpl();
  if (shapes.written.count(storage) > 0) return;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor bytes = at::empty({0}, root.options().dtype(at::kByte)).set_(root.storage());
  shapes.written[storage] = {root, bytes, bytes.clone(), root.requires_grad()};
}

void restore_written(DryShapes& shapes) {
  const c10::AutoGradMode no_grad(false);
  for (auto& [storage, written] : shapes.written) {
    written.bytes.copy_(written.before);
    if (!written.in_graph) written.tensor.detach_();
  }
  shapes.written.clear();
}

void refuse_kept(const DryShapes& shapes) {
  OSLO_CHECK(
      !shapes.over,
      "a tensor that the model kept from the run of InitializeOptions::example_inputs was "
      "used: initialize runs the example on shapes, so that it has no content; reset what "
      "the forward keeps (a cache, attention maps) after initialize, or run the model first");
}

DryNote::DryNote(DryShapes* shapes, const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments)
    : shapes_(shapes), op_(op) {
  if (shapes_ == nullptr) return;
  refuse_kept(*shapes_);
  exceptions_ = std::uncaught_exceptions();
  if (shapes_->depth++ > 0) return;
  uint64_t& calls = shapes_->calls;
  calls = mix(calls, uint64_t{reinterpret_cast<uintptr_t>(op.schema)});
  for (const c10::IValue& argument : arguments) calls = take_in(calls, argument);
}

DryNote::~DryNote() {
  if (shapes_ == nullptr || --shapes_->depth > 0) return;
  if (std::uncaught_exceptions() > exceptions_) shapes_->failed = op_.name;
}

at::Tensor shape_of(const at::Tensor& tensor) {
  if (tensor.is_meta()) return tensor;
  if (tensor.layout() != at::kStrided) {  // kernels for sparse tensors read their indices
    return at::empty(tensor.sizes(),
                     tensor.options().layout(at::kStrided).device(at::kMeta).requires_grad(false));
  }
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
  arguments = with_tensors(arguments, shape_of);
  for (c10::IValue& argument : arguments) {
    if (argument.isDevice()) argument = c10::Device(at::kMeta);
  }
  bool requires_grad = false;
  if (c10::GradMode::is_enabled()) {
    for_each_tensor(arguments,
                    [&](const at::Tensor& shape) { requires_grad |= shape.requires_grad(); });
  }
  if (const auto known = shapes.known.find(op.name); known != shapes.known.end()) {
    const auto found = known->second.find(signature(arguments));
    if (found != known->second.end()) return fresh(found->second, requires_grad);
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
      results = with_tensors(results, shape_of);
    } else {
      shapes.value_readers.push_back(op.name);
    }
  }
  shapes.known[op.name].emplace(signature(arguments), results);
  return fresh(results, requires_grad);
}

}  // namespace oslo
